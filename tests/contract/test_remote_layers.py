"""Layers of an export that a worker reads while its engine's process computes the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.engine_process.client import EngineProcess
from pagemesh.sampling.params import SamplingParams
from tests.contract.engine_harness import PROMPT, Steps, settings
from tests.support.kv_bytes import read_kv
from tests.support.waiting import wait_until


async def test_layers_can_be_read_before_their_step_has_ended(demo_model: Path) -> None:
    process = EngineProcess(settings(demo_model))
    engine = await asyncio.to_thread(process.connect)
    steps = Steps()
    read: list[tuple[Sequence[int], int, bytes]] = []

    def listener(step: StepOutput) -> None:
        steps.all.append(step)
        (table,) = [export.block_ids for step in steps.all for export in step.exports]
        for _, num_tokens, num_layers in step.progress:
            block_ids = table[: num_tokens // 16]
            blocks = read_kv(engine.kv, block_ids, 0, num_layers)
            read.append((block_ids, num_layers, blocks))

    engine.start(listener)
    # A KiB of KV for each token in each layer; 512 tokens fit into a step.
    prompt = 13 * PROMPT
    assert len(prompt) == 1040
    engine.submit(EngineRequest("a", prompt, SamplingParams(temperature=0.0), hold_blocks=True))
    await wait_until(steps.ended("a"), "the export")
    final = [read_kv(engine.kv, block_ids, 0, n) for block_ids, n, _ in read]
    await asyncio.to_thread(engine.stop)
    progress = [(p.num_tokens, p.num_layers) for step in steps.all for p in step.progress]
    assert progress == [
        (512, 2),
        (512, 4),
        (512, 6),
        (1024, 2),
        (1024, 4),
        (1024, 6),
        (1040, 6),
    ]
    assert [blocks for _, _, blocks in read] == final
    assert all(np.frombuffer(blocks, np.float32).all() for blocks in final)
