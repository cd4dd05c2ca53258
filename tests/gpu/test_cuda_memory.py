"""On a GPU: an engine takes its share of the memory and no more, and its worker reaches its KV."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.engine.engine import EngineCore
from pagemesh.engine_process.client import EngineProcess
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.loading.cuda import visible_capability
from pagemesh.loading.engine import load_engine
from tests.fakes.inbox import Inbox
from tests.support.kv_bytes import read_kv
from tests.unit.scheduler.builders import make_request

MODEL_LEN = 256
SCHEDULER = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)


def load(
    model: Path, kv_dtype: str = "auto", utilization: float = 0.1, swap_space: float = 0.0
) -> EngineCore:
    cache = CacheConfig(kv_cache_dtype=kv_dtype, swap_space=swap_space)  # type: ignore[arg-type]
    hardware = HardwareConfig("cuda", utilization)
    return load_engine(ModelConfig(str(model), max_model_len=MODEL_LEN), cache, SCHEDULER, hardware)


def answer(engine: EngineCore) -> list[int]:
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 40, max_tokens=30, ignore_eos=True))
    inbox.wait_for_end("a")
    return inbox.tokens["a"]


def test_an_engine_takes_its_share_and_gives_its_cache_back(demo_model: Path) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    before = torch.cuda.memory_reserved()
    engine = load(demo_model, utilization=0.5, swap_space=0.1)
    taken = torch.cuda.memory_reserved() - before
    kv_bytes = engine.info.num_blocks * engine.info.layout.num_bytes
    assert 0.5 * total - (2 << 30) < kv_bytes < taken <= 0.5 * total
    assert len(answer(engine)) == 30
    engine.stop()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < taken - kv_bytes + (64 << 20)


@pytest.mark.skipif(
    (visible_capability() or (9, 0)) < (8, 9), reason="this GPU has no floats of 8 bits"
)
def test_8_bit_kv_has_four_times_the_blocks_of_32_bits(demo_model: Path) -> None:
    infos = []
    # One after the other: an engine counts as its model's what its process has taken before.
    for kv_dtype in ("auto", "fp8"):
        gc.collect()
        torch.cuda.empty_cache()
        engine = load(demo_model, kv_dtype, utilization=0.3)
        infos.append(engine.info)
        assert len(answer(engine)) == 30
        engine.stop()
        del engine
    own, small = infos
    assert small.layout.dtype == "float8_e4m3fn"
    assert small.num_blocks == pytest.approx(4 * own.num_blocks, rel=0.2)
    assert small.model_fingerprint == own.model_fingerprint


def test_a_worker_reads_and_writes_the_kv_of_its_engines_process(demo_model: Path) -> None:
    # Plainly, as a GPU machine has no plug-in for tests that are coroutines.
    asyncio.run(_read_and_write(demo_model))


async def _read_and_write(demo_model: Path) -> None:
    process = EngineProcess(
        EngineSettings(
            ModelConfig(str(demo_model), max_model_len=MODEL_LEN),
            CacheConfig(kv_cache_memory=0.05),
            SCHEDULER,
            ServerConfig(),
            "decode",
            HardwareConfig("cuda"),
        )
    )
    engine = await asyncio.to_thread(process.connect)
    try:
        layout = engine.info.layout
        block_ids = [5, 3, 4, 0]
        payload = (
            torch.randint(0, 100, (4 * layout.num_bytes,), dtype=torch.uint8).numpy().tobytes()
        )
        before = await asyncio.to_thread(read_kv, engine.kv, [1], 0, layout.num_layers)
        await asyncio.to_thread(engine.kv.write, block_ids, 0, layout.num_layers, payload)
        read = await asyncio.to_thread(read_kv, engine.kv, block_ids, 0, layout.num_layers)
        assert read == payload
        after = await asyncio.to_thread(read_kv, engine.kv, [1], 0, layout.num_layers)
        assert after == before
    finally:
        await asyncio.to_thread(engine.stop)
