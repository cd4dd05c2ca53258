"""Real workers and a router's end of a session, on the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, cast

import grpc
from google.protobuf import duration_pb2
from opentelemetry.trace import INVALID_SPAN

from pagemesh.config import ModelConfig, ServerConfig, WorkerConfig
from pagemesh.core.engine import Engine
from pagemesh.rpc.call_context import CallContext, bind_call
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, kv_transfer_pb2, types_pb2
from pagemesh.worker.server import Role, WorkerServer
from pagemesh.worker.worker import Worker
from tests.support.leaks import assert_nothing_leaked
from tests.support.waiting import wait_until

NO_TRACE: Mapping[str, str] = {}


@dataclass(frozen=True)
class RunningWorker:
    """A worker that serves on a loopback port."""

    server: WorkerServer
    worker: Worker

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def peer(self) -> types_pb2.PeerWorker:
        """How other workers are told of this one."""
        return types_pb2.PeerWorker(
            worker_id=self.worker.info.worker_id,
            address=self.address,
            epoch=self.worker.info.epoch,
        )

    @property
    def plan(self) -> decode_pb2.PrefillPlan:
        """The plan that names this worker."""
        return decode_pb2.PrefillPlan(workers=[self.peer])

    def source(self, num_blocks: int) -> kv_transfer_pb2.KvSource:
        """Says that this worker holds so many blocks."""
        return kv_transfer_pb2.KvSource(worker=self.peer, block_count=num_blocks)

    def sample(self, name: str, **labels: str) -> float:
        """The present value of a metric; 0 when it was never touched."""
        engine = {"engine": "0"} if name.startswith("vllm:") else {}
        return self.worker.metrics.registry.get_sample_value(name, labels | engine) or 0.0

    async def step_has_passed(self) -> None:
        """Return when the engine did everything that was asked of it before, and its load shows so."""
        pin_id = self.worker.dispatcher.unique_id("barrier")
        # The second one is answered by a later round of the engine than the first.
        for _ in range(2):
            await asyncio.wrap_future(self.worker.engine.pin(pin_id, ()))
            self.worker.engine.release(pin_id)

    def all_blocks_free(self) -> bool:
        return self.worker.engine.load().num_free_blocks == self.worker.engine.info.num_blocks


def direct_call(seconds: float = 20.0) -> grpc.aio.ServicerContext[Any, Any]:
    """For servicers called directly whose RPC does not look at its context: the task works for a call."""
    deadline = asyncio.get_running_loop().time() + seconds
    bind_call(CallContext(deadline=deadline), INVALID_SPAN)
    return cast(grpc.aio.ServicerContext[Any, Any], None)


@asynccontextmanager
async def running_worker(
    role: Role, engine: Engine, grace_period: float = 0.2
) -> AsyncIterator[RunningWorker]:
    """A worker of the role with this engine; closed at the end, when nothing may be left in the engine."""
    config = WorkerConfig(
        model=ModelConfig(model="fake"), server=ServerConfig(grace_period=grace_period)
    )
    async with WorkerServer(config, role) as server:
        yield RunningWorker(server, await server.serve(engine))
    assert_nothing_leaked(engine)


@dataclass
class Received:
    """What a session was told about one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_UNSPECIFIED
    error: types_pb2.Error | None = None
    usage: types_pb2.PromptUsage | None = None
    kv: types_pb2.KvOutcome | None = None
    logprobs: list[types_pb2.TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[types_pb2.TokenLogprobs] = field(default_factory=list)
    num_outputs: int = 0

    @property
    def is_over(self) -> bool:
        return self.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED

    @property
    def is_finished(self) -> bool:
        return self.finish_reason in (
            types_pb2.FINISH_REASON_STOP,
            types_pb2.FINISH_REASON_LENGTH,
        )


class RouterSession:
    """A session as a router has it: submits, cancels, and collects what it is told."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(self._channel)
        self.call = stub.Session()
        self.responses: list[decode_pb2.SessionResponse] = []
        self._received: dict[int, Received] = {}
        self._reader = asyncio.create_task(self._read())
        self.has_ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self._reader
        await self._channel.close()

    def __getitem__(self, handle: int) -> Received:
        return self._received.setdefault(handle, Received())

    async def submit(
        self,
        handle: int,
        prompt: Sequence[int],
        *,
        max_tokens: int = 8,
        time_limit: float | None = 20.0,
        plan: decode_pb2.PrefillPlan | None = None,
        resume: Sequence[int] = (),
        seed: int = 0,
        sampling: types_pb2.SamplingParams | None = None,
        cache_salt: bytes = b"",
        fork_of: int = 0,
        trace: Mapping[str, str] = NO_TRACE,
        priority: int = 0,
    ) -> None:
        submit = decode_pb2.Submit(
            handle=handle,
            request_id=f"client-{handle}",
            prompt_token_ids=prompt,
            resume_token_ids=resume,
            sampling=sampling or types_pb2.SamplingParams(max_tokens=max_tokens, seed=seed),
            cache_salt=cache_salt,
            prefill_plan=plan,
            fork_of_handle=fork_of,
            traceparent=trace.get("traceparent", ""),
            tracestate=trace.get("tracestate", ""),
            priority=priority,
        )
        if time_limit is not None:
            submit.timeout.CopyFrom(duration_pb2.Duration(nanos=int(time_limit % 1 * 1e9)))
            submit.timeout.seconds = int(time_limit)
        await self.call.write(decode_pb2.SessionRequest(submit=submit))

    async def cancel(self, handle: int) -> None:
        await self.call.write(decode_pb2.SessionRequest(cancel=decode_pb2.Cancel(handle=handle)))

    async def over(self, handle: int) -> Received:
        """What was told about a request, once its last output came."""
        await self._until(lambda: self[handle].is_over, f"the end of request {handle}", 20.0)
        return self[handle]

    async def has_tokens(self, handle: int, num_tokens: int = 1) -> None:
        await self._until(
            lambda: len(self[handle].token_ids) >= num_tokens, f"tokens of request {handle}"
        )

    async def generate(self, handle: int, prompt: Sequence[int], **settings: object) -> Received:
        """Submit and wait for the end."""
        await self.submit(handle, prompt, **settings)  # type: ignore[arg-type]
        return await self.over(handle)

    async def _until(self, is_met: Callable[[], bool], what: str, within: float = 5.0) -> None:
        """Wait for what the session tells, which after its end is nothing any more."""
        await wait_until(lambda: is_met() or self.has_ended, what, within)
        assert is_met(), f"the session ended before {what}: {self.call!r}"

    async def _read(self) -> None:
        try:
            async for response in self.call:
                self.responses.append(response)
                for output in response.outputs:
                    self._take(output)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self.has_ended = True

    def _take(self, output: decode_pb2.RequestOutput) -> None:
        received = self[output.handle]
        assert not received.is_over, f"an output of request {output.handle} after its last one"
        received.num_outputs += 1
        received.token_ids += output.token_ids
        received.logprobs += output.logprobs
        received.prompt_logprobs += output.prompt_logprobs
        received.finish_reason = output.finish_reason
        if output.HasField("error"):
            received.error = output.error
        if output.HasField("prompt_usage"):
            received.usage = output.prompt_usage
        if output.HasField("kv_outcome"):
            assert received.kv is None, f"a second outcome of request {output.handle}"
            received.kv = output.kv_outcome
