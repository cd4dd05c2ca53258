"""A prompt in a situation, the ways that its KV may come, and a run of one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import product
from types import TracebackType
from typing import Final, Self

import grpc.aio
from kv.far_mesh import FarMesh
from kv.sessions import Answer, TimedSession
from kv.streams import fresh_prompt
from members import peer
from mesh import REQUEST_DEADLINE_S

from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import decode_pb2, inference_pb2, inference_pb2_grpc, types_pb2

HOLDER: Final = "decode-1"
"""Holds the beginning of a prompt, and is the one that may be busy."""
PREFILL: Final = "prefill-0"
HELD_SHARE: Final = 0.75
BUSY_TOKENS: Final = 4096
NOTICE_S: Final = 0.4
"""For the router to hear of what was cached and who is busy: some reports of the workers."""


@dataclass(frozen=True)
class Way:
    """Where a prompt goes, and where its KV comes from."""

    decode: str
    remote: bool
    """Whether the prefill worker computes it."""
    pull: bool
    """Whether whoever computes it takes what the holder has from there."""

    @property
    def name(self) -> str:
        """For people."""
        what = {
            (False, False): "local",
            (True, False): "remote",
            (False, True): "pull",
            (True, True): "remote + pull",
        }
        return f"{what[self.remote, self.pull]} on {self.decode}"


@dataclass(frozen=True)
class Case:
    """What kind of prompt, and when it comes."""

    length: int
    held_tokens: int
    """Of the prompt, in the holder's cache."""
    busy: bool
    """Whether the holder prefills another prompt."""

    @property
    def name(self) -> str:
        """For people."""
        prefix = f", {self.held_tokens} of them held" if self.held_tokens else ""
        return f"{self.length} tokens{prefix}{', busy' if self.busy else ''}"

    @property
    def decoders_differ(self) -> bool:
        """Whether it matters which decode worker a prompt goes to."""
        return self.busy or self.held_tokens > 0

    @property
    def ways(self) -> list[Way]:
        """All that make sense; of decode workers that are alike, only the first one's."""
        decoders = ["decode-0", HOLDER] if self.decoders_differ else ["decode-0"]
        return [
            Way(decode, remote, pull)
            for decode, remote, pull in product(decoders, (False, True), (False, True))
            # The prefill worker may pull from where it sends to; the holder itself has nothing to pull.
            if not pull or (self.held_tokens and (remote or decode != HOLDER))
        ]


def make_cases(lengths: Sequence[int]) -> list[Case]:
    """Every length in every situation."""
    return [
        Case(length, round(held * length), busy)
        for length, held, busy in product(lengths, (0.0, HELD_SHARE), (False, True))
    ]


class Cases:
    """Runs cases on a mesh, one after the other."""

    def __init__(self, mesh: FarMesh) -> None:
        self._mesh = mesh
        self._stack = AsyncExitStack()
        self._workers = {name: mesh.worker(name) for name in ("decode-0", HOLDER, PREFILL)}
        self._sessions: dict[str, TimedSession] = {}

    async def __aenter__(self) -> Self:
        for name in ("decode-0", HOLDER):
            session = TimedSession(self._workers[name].address)
            self._sessions[name] = await self._stack.enter_async_context(session)
        self._channel = await self._stack.enter_async_context(open_channel(self._mesh.router))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def warm_up(self) -> None:
        """Every way twice, so that each worker has computed, and each link was used."""
        await self._await_router()
        case = Case(1024, 768, busy=False)
        for _ in range(2):
            for way in case.ways:
                await self.force(case, way)
            await self.choose(case)

    async def force(self, case: Case, way: Way) -> float:
        """TTFT in ms of a new prompt that goes a given way."""
        prompt, busy = await self._prepare(case)
        plan = self._plan(case, way) if way.remote or way.pull else None
        answer = await self._sessions[way.decode].submit(prompt, 2, plan)
        await answer.until_over()
        await self._end(busy)
        return answer.first_ms

    async def choose(self, case: Case) -> tuple[str, float]:
        """The way that the router chose for a new prompt, and its TTFT in ms."""
        prompt, busy = await self._prepare(case)
        before = self._counts()
        started, first = time.perf_counter(), 0.0
        async for response in self._generate(prompt, 2):
            if response.token_ids and not first:
                first = time.perf_counter()
        way = self._way_since(before)
        if not case.decoders_differ:
            way = replace(way, decode="decode-0")
        await self._end(busy)
        return way.name, (first - started) * 1e3

    async def _prepare(self, case: Case) -> tuple[list[int], Answer | None]:
        """Bring the mesh into the case's situation; gives a prompt, and what keeps the holder busy."""
        prompt = fresh_prompt(case.length)
        holder = self._sessions[HOLDER]
        if case.held_tokens:
            # A token behind the last whole block, which is not a part of what is held.
            held = await holder.submit([*prompt[: case.held_tokens], 1], 1)
            await held.until_over()
        busy = await holder.submit(fresh_prompt(BUSY_TOKENS), 1) if case.busy else None
        await asyncio.sleep(NOTICE_S)
        return prompt, busy

    async def _end(self, busy: Answer | None) -> None:
        if busy is not None:
            await self._sessions[HOLDER].cancel_all()

    def _plan(self, case: Case, way: Way) -> decode_pb2.PrefillPlan:
        plan = decode_pb2.PrefillPlan()
        if way.remote:
            plan.workers.append(peer(self._workers[PREFILL]))
        if way.pull:
            block_size = self._workers[HOLDER].kv_layout.block_size
            plan.source.worker.CopyFrom(peer(self._workers[HOLDER]))
            plan.source.block_count = case.held_tokens // block_size
        return plan

    async def _await_router(self) -> None:
        """Until the router answers."""
        deadline = time.monotonic() + REQUEST_DEADLINE_S
        while time.monotonic() < deadline:
            try:
                async for _ in self._generate(fresh_prompt(16), 1):
                    pass
                return
            except grpc.aio.AioRpcError as error:
                reason = error.details()
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the router does not serve: {reason}\n{self._mesh.log()}")

    def _generate(
        self, prompt: list[int], num_tokens: int
    ) -> AsyncIterable[inference_pb2.GenerateResponse]:
        """What the router answers."""
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=types_pb2.SamplingParams(max_tokens=num_tokens, ignore_eos=True),
        )
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            self._channel
        )
        return stub.Generate(request, timeout=2 * REQUEST_DEADLINE_S)

    def _counts(self) -> dict[str, float]:
        """What tells afterwards which way a prompt took."""
        counts = {}
        for name in ("decode-0", HOLDER):
            for outcome in ("complete", "pulled"):
                counts[f"{name} {outcome}"] = self._mesh.metric(
                    name, "pagemesh:remote_prefills_total", outcome=outcome
                )
        counts["decode-0 prompts"] = self._mesh.metric("decode-0", "vllm:prompt_tokens_total")
        counts["prefill pulls"] = self._mesh.metric(PREFILL, "pagemesh:kv_pulls_total")
        return counts

    def _way_since(self, before: dict[str, float]) -> Way:
        now = self._counts()
        grown = {name for name, value in now.items() if value > before[name]}
        # The holder may have had a first token of the prompt that kept it busy.
        decode = "decode-0" if "decode-0 prompts" in grown else HOLDER
        remote = f"{decode} complete" in grown
        return Way(decode, remote, f"{decode} pulled" in grown or "prefill pulls" in grown)
