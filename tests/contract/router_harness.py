"""A whole mesh in one process: kvstore, workers over the fake runner, a router with the demo tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from pagemesh import config
from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kvstore.service import KvStoreService
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.router.service import RouterProcess
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import (
    anthropic_pb2_grpc,
    console_pb2,
    console_pb2_grpc,
    inference_pb2_grpc,
    kvstore_pb2,
    kvstore_pb2_grpc,
    openai_pb2_grpc,
)
from pagemesh.worker.server import Role
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import Answer, http_body, pairs, read
from tests.fakes.engine import FakeEngine

MODEL = Path(__file__).resolve().parents[2] / "models/demo"
DEADLINE_S = 10.0
UNTRACED = config.TracesConfig()
SHORT_GRACE = config.ServerConfig(grace_period=0.2)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail when that takes longer than DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.01)


class Mesh:
    """Everything that a test needs to know of its mesh."""

    def __init__(
        self, kvstore: KvStoreService, kvstore_address: str, router: RouterProcess, address: str
    ) -> None:
        self.kvstore = kvstore
        self.router = router
        self.kvstore_address = kvstore_address
        self.address = address
        """Of the router."""
        self.channel = channel = open_channel(address)
        self.console: console_pb2_grpc.ConsoleAsyncStub = console_pb2_grpc.ConsoleStub(channel)
        self.openai: openai_pb2_grpc.OpenAIAsyncStub = openai_pb2_grpc.OpenAIStub(channel)
        self.anthropic: anthropic_pb2_grpc.AnthropicAsyncStub = anthropic_pb2_grpc.AnthropicStub(
            channel
        )
        self.inference: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            channel
        )
        self.workers: dict[str, FakeWorker] = {}
        self.traces = UNTRACED
        """Of the workers to come."""

    async def add(
        self,
        role: Role,
        worker_id: str,
        *,
        served: str = "demo",
        grace_period: float = 0.2,
        **engine: Any,
    ) -> FakeWorker:
        """Start a worker and wait until the router can use it."""
        worker = FakeWorker(
            role,
            worker_id,
            self.kvstore_address,
            FakeEngine(**engine),
            served,
            grace_period,
            self.traces,
        )
        await worker.start()
        self.workers[worker_id] = worker
        known = f"{role.name}_workers"
        before = sum(w.startswith(role.name) for w in self.workers)
        deadline = time.monotonic() + DEADLINE_S
        while (await self.health())[known] < before:
            assert time.monotonic() < deadline, f"the router does not see {worker_id}"
            await asyncio.sleep(0.01)
        return worker

    async def remove(self, worker_id: str) -> None:
        await self.workers.pop(worker_id).close()

    async def holders(
        self, prompt: list[int], salt: bytes = b"", arithmetic: str = ""
    ) -> dict[str, int]:
        """How many leading blocks of a prompt the kvstore believes that each worker holds."""
        root = root_hash("fake", 16, "float32", salt, arithmetic=arithmetic)
        names = hash_blocks(root, prompt, 16)
        request = kvstore_pb2.LookupRequest(block_hashes=b"".join(names), model_fingerprint="fake")
        async with open_channel(self.kvstore_address) as channel:
            stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
            response = await stub.Lookup(request, timeout=5)
        return {holder.worker_id: holder.block_count for holder in response.holders}

    async def health(self) -> Any:
        return (await read(self.console.Health(console_pb2.ConsoleHealthRequest()))).json()

    async def chat(self, body: object, **metadata: str) -> Answer:
        return await read(self.openai.ChatCompletions(http_body(body), metadata=pairs(metadata)))

    async def add_all(self, role: Role, count: int, **engine: Any) -> None:
        """Start so many workers, one after the other."""
        for index in range(count):
            await self.add(role, f"{role.name}-{index}", **engine)

    async def close(self) -> None:
        """End the workers, and hang up."""
        await self.channel.close()
        await asyncio.gather(*(worker.close() for worker in self.workers.values()))

    async def completions(self, body: object, **metadata: str) -> Answer:
        return await read(self.openai.Completions(http_body(body), metadata=pairs(metadata)))

    async def responses(self, body: object, **metadata: str) -> Answer:
        return await read(self.openai.Responses(http_body(body), metadata=pairs(metadata)))

    async def messages(self, body: object, **metadata: str) -> Answer:
        return await read(self.anthropic.Messages(http_body(body), metadata=pairs(metadata)))

    async def num_migrated(self, reason: str) -> float:
        """Requests that went on with another worker."""
        return await self.metric(f'pagemesh:requests_resubmitted_total{{reason="{reason}"}}')

    async def metric(self, line: str) -> float:
        """The value of a metric by its name and labels as they are exported; 0 when absent."""
        return self.metric_now(line)

    def metric_now(self, line: str) -> float:
        """The value of a metric by its name and labels as they are exported; 0 when absent."""
        name, has_labels, labels = line.partition("{")
        if has_labels and name.startswith("vllm:"):
            # Every series of vLLM's names says of which engine it is; each process has one.
            pairs = sorted([*labels.rstrip("}").split(","), 'engine="0"'])
            line = f"{name}{{{','.join(pairs)}}}"
        # Of this router alone, and of its hundred metrics this one: tests wait for values.
        shown = self.router._metrics.registry.restricted_registry([name])
        for found in generate_latest(shown).decode().splitlines():
            if found.startswith(line + " "):
                return float(found.rpartition(" ")[2])
        return 0.0


def _routing(policy: Any, min_tokens: int | None, explain: bool) -> config.RoutingConfig:
    return config.RoutingConfig(
        policy=policy,
        # The default's 20 ms are short for a loaded machine that runs the whole mesh on one loop.
        lookup_timeout=5.0,
        remote_prefill_min_tokens=min_tokens,
        explain_routes=explain,
    )


@asynccontextmanager
async def running_mesh(
    *,
    models: tuple[str | Path, ...] = (MODEL,),
    aliases: tuple[str, ...] = (),
    decode: int = 1,
    prefill: int = 0,
    policy: Any = "kv_aware",
    request_timeout: float = 20.0,
    max_waiting_requests: int = 64,
    remote_prefill_min_tokens: int | None = 16,
    grace_period: float = 0.2,
    explain_routes: bool = False,
    stream_interval: int = 1,
    otlp_traces_endpoint: str | None = None,
    traces: config.TracesConfig = UNTRACED,
    tenants: config.TenantsConfig | None = None,
    migration: config.MigrationConfig | None = None,
    generation: config.GenerationConfig | None = None,
    **engine: Any,
) -> AsyncIterator[Mesh]:
    """A mesh whose workers are named decode-0, prefill-0 …; the grace period and the endpoint are the router's."""
    kvstore = KvStoreService(config.KvStoreConfig(server=SHORT_GRACE, traces=traces))
    address = await kvstore.start()
    settings = config.RouterConfig(
        model=tuple(map(str, models)),
        model_alias=aliases,
        kvstore=address,
        request_timeout=request_timeout,
        max_waiting_requests=max_waiting_requests,
        stream_interval=stream_interval,
        routing=_routing(policy, remote_prefill_min_tokens, explain_routes),
        tenants=tenants or config.TenantsConfig(),
        migration=migration or config.MigrationConfig(),
        generation=generation or config.GenerationConfig(),
        traces=config.TracesConfig(otlp_traces_endpoint) if otlp_traces_endpoint else traces,
        server=config.ServerConfig(grace_period=grace_period),
    )
    router = RouterProcess(settings)
    mesh: Mesh | None = None
    try:
        mesh = Mesh(kvstore, address, router, await router.start())
        mesh.traces = traces
        await mesh.add_all(DECODE_ROLE, decode, **engine)
        await mesh.add_all(PREFILL_ROLE, prefill, **engine)
        yield mesh
    finally:
        await router.close()
        if mesh is not None:
            await mesh.close()
        await kvstore.close()
