"""An engine in a process of its own, and all that it made known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest, RequestOutput
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.sampling.params import SamplingParams

PROMPT = tuple(range(20, 100))


def settings(model: Path) -> EngineSettings:
    return EngineSettings(
        ModelConfig(model=str(model), threads=1),
        CacheConfig(kv_cache_memory=0.02),
        SchedulerConfig(),
        ServerConfig(),
        "decode",
    )


def request(
    request_id: str,
    max_tokens: int = 8,
    *,
    prompt: Sequence[int] = PROMPT,
    hold_blocks: bool = False,
) -> EngineRequest:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id, tuple(prompt), sampling, hold_blocks=hold_blocks)


class Steps:
    """Everything that an engine made known."""

    def __init__(self) -> None:
        self.all: list[StepOutput] = []

    def outputs(self, request_id: str) -> list[RequestOutput]:
        return [o for step in self.all for o in step.outputs if o.request_id == request_id]

    def ended(self, request_id: str) -> Callable[[], bool]:
        return lambda: any(o.finish_reason is not None for o in self.outputs(request_id))

    def tokens(self, request_id: str) -> list[int]:
        return [token for o in self.outputs(request_id) for token in o.token_ids]


@asynccontextmanager
async def running(process: EngineProcess) -> AsyncIterator[tuple[RemoteEngine, Steps]]:
    engine = await asyncio.to_thread(process.connect)
    steps = Steps()
    engine.start(steps.all.append)
    try:
        yield engine, steps
    finally:
        await asyncio.to_thread(engine.stop)
