"""On one GPU: the engines of two processes copy KV out of each other's memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.engine_process.client import EngineProcess, RemoteEngine
from pagemesh.engine_process.pipe import EngineSettings
from pagemesh.errors import UnavailableError
from pagemesh.kernels.block_copy import checksum_of
from pagemesh.kv_memory.staged import DeviceMemoryName, StagedKv
from tests.support.kv_bytes import read_kv
from tests.support.waiting import wait_until

SOURCES, TARGETS = [5, 3, 4, 0], [1, 9, 2, 7]
OTHERS = [0, 3, 4, 5, 6, 8]
"""Blocks into which nothing is copied."""


def settings(model: Path) -> EngineSettings:
    return EngineSettings(
        ModelConfig(str(model), max_model_len=256),
        CacheConfig(kv_cache_memory=0.05),
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        ServerConfig(),
        "decode",
        HardwareConfig("cuda"),
    )


async def load(model: Path) -> tuple[RemoteEngine, StagedKv]:
    engine = await asyncio.to_thread(EngineProcess(settings(model)).connect)
    assert isinstance(engine.kv, StagedKv)
    return engine, engine.kv


def test_kv_goes_between_two_processes_on_one_gpu(demo_model: Path) -> None:
    # Plainly, as a GPU machine has no plug-in for tests that are coroutines.
    asyncio.run(_copy(demo_model))


async def _copy(demo_model: Path) -> None:
    sender, theirs = await load(demo_model)
    receiver, ours = await load(demo_model)
    try:
        layout = sender.info.layout
        everything = 0, layout.num_layers
        name = theirs.name
        assert name is not None, "the GPU's memory cannot be shared"
        # The check at load leaves something there.
        before = read_kv(ours, OTHERS, *everything)
        random = torch.randint(0, 256, (4 * layout.num_bytes,), dtype=torch.uint8)
        payload = random.numpy().tobytes()
        theirs.write(SOURCES, *everything, payload)
        told = theirs.checksum(SOURCES, *everything)
        assert told == checksum_of(payload)
        assert ours.copy_from(name, SOURCES, TARGETS, *everything) == told
        assert read_kv(ours, TARGETS, *everything) == payload
        assert read_kv(ours, OTHERS, *everything) == before
        theirs.write(SOURCES[:1], layout.num_layers - 1, 1, bytes(layout.num_bytes_per_layer))
        assert ours.copy_from(name, SOURCES, TARGETS, *everything) != told
        os.kill(name.process_id, signal.SIGKILL)
        await wait_until(lambda: _is_unreachable(ours, name), "memory of the dead is let go of")
        # The one who had it open still computes.
        assert any(read_kv(ours, TARGETS, *everything))
    finally:
        await asyncio.to_thread(sender.stop)
        await asyncio.to_thread(receiver.stop)


def _is_unreachable(kv: StagedKv, name: DeviceMemoryName) -> bool:
    try:
        kv.copy_from(name, [0], [0], 0, 1)
    except UnavailableError as error:
        assert error.reason == "KV_MEMORY_UNREACHABLE", error
        return True
    return False
