"""What a device computes before it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.cuda.kv_pool import KvPool
from pagemesh.engine.cuda.runner import CudaRunner
from pagemesh.loading.engine import load_engine
from pagemesh.loading.profile_run import warm_up_batches
from pagemesh.scheduler.batch import Batch, BlockMoves
from tests.support.host_gpu import HostGpu

LAYOUT = KvLayout.uniform(num_layers=2, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")


def batches(max_num_batched_tokens: int, generates: bool = True) -> list[Batch]:
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=max_num_batched_tokens)
    return warm_up_batches(LAYOUT, scheduler, 100, generates=generates)


def test_prompts_double_up_to_the_longest_step_and_a_decode_ends_the_longest_request() -> None:
    spans = [(s.start, len(s.token_ids)) for batch in batches(50) for s in batch.sequences]
    assert spans == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 8), (0, 16), (0, 32), (0, 50), (99, 1)]
    assert [len(batch.sequences[0].block_ids) for batch in batches(50)] == [
        1,
        1,
        1,
        1,
        1,
        1,
        2,
        4,
        7,
    ]


def test_a_prompt_is_no_longer_than_a_request() -> None:
    assert max(batch.num_tokens for batch in batches(8192)) == 100


@pytest.mark.parametrize("max_num_batched_tokens", [1, 50])
def test_every_number_of_logprobs_is_asked_for(max_num_batched_tokens: int) -> None:
    asked = [s.sampling for batch in batches(max_num_batched_tokens) for s in batch.sequences]
    assert {params.logprobs for params in asked if params is not None} == {0, 5, 20}


def test_all_but_the_last_token_of_a_prompt_are_scored() -> None:
    targets = [batch.sequences[0].prompt_targets for batch in batches(50)]
    numbers = [0 if each is None else len(each.token_ids) for each in targets]
    assert numbers == [0, 1, 2, 3, 7, 15, 31, 49, 0]


def test_a_model_that_only_embeds_pools_whole_prompts() -> None:
    sequences = [batch.sequences[0] for batch in batches(50, generates=False)]
    assert [len(s.pooled or ()) for s in sequences] == [1, 2, 3, 4, 8, 16, 32, 50]
    assert {s.sampling for s in sequences} == {None}


class Notes(NamedTuple):
    dummy_runs: list[tuple[int, int]]
    moved: list[BlockMoves]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What runners were asked for."""
    noted = Notes([], [])
    dummy_run, move = CudaRunner.dummy_run, CudaRunner.move

    def note(runner: CudaRunner, batch: Batch) -> None:
        noted.dummy_runs.append((len(batch.sequences), batch.num_tokens))
        dummy_run(runner, batch)

    def note_moves(runner: CudaRunner, moves: BlockMoves) -> None:
        noted.moved.append(moves)
        move(runner, moves)

    monkeypatch.setattr(CudaRunner, "dummy_run", note)
    monkeypatch.setattr(CudaRunner, "move", note_moves)
    return noted


def test_what_a_copy_between_devices_needs_is_compiled_by_doing_it(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, copies = KvPool.sum, KvPool.copy_from
    done = []

    def note_sum(pool: KvPool, *arguments: Any) -> torch.Tensor:
        done.append("sum")
        return sums(pool, *arguments)

    def note_copy(pool: KvPool, *arguments: Any) -> torch.Tensor:
        done.append("copy")
        return copies(pool, *arguments)

    monkeypatch.setattr(KvPool, "sum", note_sum)
    monkeypatch.setattr(KvPool, "copy_from", note_copy)
    load(demo_model, swap_space=0.0)
    assert done == ["sum", "copy"]


def load(demo_model: Path, swap_space: float) -> None:
    cache = CacheConfig(kv_cache_memory=0.125, swap_space=swap_space)
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=20)
    load_engine(
        ModelConfig(str(demo_model), max_model_len=128),
        cache,
        scheduler,
        HardwareConfig(enforce_eager=True),
        gpu=HostGpu(),
    ).stop()


def test_the_largest_step_is_measured_when_all_others_were_computed(
    demo_model: Path, notes: Notes
) -> None:
    load(demo_model, swap_space=0.125)
    first = [*((1, number) for number in (1, 2, 3, 4, 8, 16, 20)), (1, 1)]
    largest = (4, 20)
    trial = [*first, largest, *first, largest]
    assert notes.dummy_runs == [*trial, *first, largest]
    assert notes.moved == [BlockMoves(((0, 0),), ((0, 0),), ((0, 1),))]


def test_without_a_swap_space_nothing_is_swapped(demo_model: Path, notes: Notes) -> None:
    load(demo_model, swap_space=0.0)
    assert notes.moved == [BlockMoves(copies=((0, 1),))]
