"""A router's end of a decode worker's session, with the times at which tokens came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from mesh import REQUEST_DEADLINE_S

from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, types_pb2


@dataclass
class Answer:
    """What came of one request; times by time.perf_counter()."""

    started: float
    arrivals: list[float] = field(default_factory=list)
    """When tokens came, once for each message that brought some."""
    num_tokens: int = 0
    kv: types_pb2.KvOutcome | None = None
    error: str = ""
    first: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first token, and with the end."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first_ms(self) -> float:
        """From the submission to the first token."""
        return (self.arrivals[0] - self.started) * 1e3

    def gaps_ms(self, begin: float, end: float) -> list[float]:
        """Times between two messages with tokens of which the later came in [begin, end)."""
        return [
            (later - earlier) * 1e3
            for earlier, later in pairwise(self.arrivals)
            if begin <= later < end
        ]

    async def until_first(self) -> None:
        """Wait for the first token; RuntimeError when there is none."""
        await asyncio.wait_for(self.first.wait(), 4 * REQUEST_DEADLINE_S)
        self._check()

    async def until_over(self) -> None:
        """Wait for the end; RuntimeError when it is an error."""
        await asyncio.wait_for(self.over.wait(), 4 * REQUEST_DEADLINE_S)
        self._check()

    def _check(self) -> None:
        if self.error:
            raise RuntimeError(f"a request failed: {self.error}")


class TimedSession:
    """One session with the decode worker at an address."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(self._channel)
        self._call = stub.Session()
        self._writing = asyncio.Lock()
        self._handles = count(1)
        self._answers: dict[int, Answer] = {}
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def submit(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        plan: decode_pb2.PrefillPlan | None = None,
    ) -> Answer:
        """Have so many tokens generated greedily; a plan says where the prompt's KV comes from."""
        handle = next(self._handles)
        submit = decode_pb2.Submit(
            handle=handle,
            request_id=f"benchmark-{handle}",
            prompt_token_ids=prompt,
            sampling=types_pb2.SamplingParams(max_tokens=num_tokens, ignore_eos=True),
            prefill_plan=plan,
        )
        submit.timeout.FromSeconds(int(4 * REQUEST_DEADLINE_S))
        answer = self._answers[handle] = Answer(time.perf_counter())
        await self._write(decode_pb2.SessionRequest(submit=submit))
        return answer

    async def cancel_all(self) -> None:
        """End every request that runs, and wait for the ends."""
        running = dict(self._answers)
        for handle in running:
            await self._write(decode_pb2.SessionRequest(cancel=decode_pb2.Cancel(handle=handle)))
        for answer in running.values():
            await asyncio.wait_for(answer.over.wait(), REQUEST_DEADLINE_S)

    async def _write(self, request: decode_pb2.SessionRequest) -> None:
        # A call takes one message at a time, and breaks when it is given two.
        async with self._writing:
            await self._call.write(request)

    async def _read(self) -> None:
        error = "the session ended"
        try:
            async for response in self._call:
                now = time.perf_counter()
                for output in response.outputs:
                    self._take(output, now)
        except grpc.aio.AioRpcError as failure:
            error = f"{failure.code().name}: {failure.details()}"
        finally:
            for answer in self._answers.values():
                _end(answer, error)

    def _take(self, output: decode_pb2.RequestOutput, now: float) -> None:
        answer = self._answers[output.handle]
        if output.HasField("kv_outcome"):
            answer.kv = output.kv_outcome
        if output.token_ids:
            answer.arrivals.append(now)
            answer.num_tokens += len(output.token_ids)
            answer.first.set()
        if output.finish_reason:
            del self._answers[output.handle]
            _end(answer, output.error.message)


def _end(answer: Answer, error: str) -> None:
    answer.error = error
    answer.first.set()
    answer.over.set()
