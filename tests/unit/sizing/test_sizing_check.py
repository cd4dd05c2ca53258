"""A model that is too large for the machine is refused, before it is loaded or at the latest after."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.errors import ConfigError
from pagemesh.loading import profile_run
from pagemesh.loading.engine import load_engine
from pagemesh.loading.profile_run import check_after_loading, largest_batch, measure_step
from pagemesh.malloc import give_back_freed_memory
from pagemesh.models.loader import load_model
from pagemesh.sizing import check
from pagemesh.sizing.machine import MachineMemory, ProcessMemory, process_memory

GIB = 2**30


@pytest.fixture(scope="module")
def runner(demo_model: Path) -> CpuRunner:
    return CpuRunner(load_model(ModelConfig(str(demo_model))), 16, 64)


def test_more_than_the_machine_has_is_refused_before_anything_is_loaded(demo_model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"of memory, but 1000\d\.\d\d GiB are needed: 15\.5 MiB weig"
    ):
        load_engine(
            ModelConfig(str(demo_model)), CacheConfig(kv_cache_memory=10_000), SchedulerConfig()
        )


def test_what_is_there_after_loading_counts_as_measured(
    runner: CpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_run, "measure_step", lambda *_: GIB)
    monkeypatch.setattr(profile_run, "process_memory", lambda: ProcessMemory(3 * GIB, 9 * GIB))
    monkeypatch.setattr(check, "machine_memory", lambda: MachineMemory(6 * GIB, GIB))
    cache = CacheConfig(kv_cache_memory=1.5, swap_space=0.5)
    check_after_loading(runner, cache, SchedulerConfig().on("cpu"), 2048)
    cache = CacheConfig(kv_cache_memory=1.5, swap_space=0.75)
    with pytest.raises(ConfigError) as refusal:
        check_after_loading(runner, cache, SchedulerConfig().on("cpu"), 2048)
    assert refusal.value.message == (
        "this machine has 6.00 GiB of memory, but 6.25 GiB are needed: 3.00 GiB model, 1.00 GiB "
        "activations (--max-num-batched-tokens, --max-num-seqs), 1.50 GiB KV cache (--kv-cache-memory), "
        "0.75 GiB swap space (--swap-space)"
    )


def test_a_larger_step_takes_more_memory(runner: CpuRunner) -> None:
    small = measure_step(runner, SchedulerConfig(1, 16), 2048)
    # What other tests have freed would be taken unseen.
    give_back_freed_memory()
    large = measure_step(runner, SchedulerConfig(64, 8192), 2048)
    assert small is not None and large is not None
    # By arithmetic, the large one takes 46 MiB.
    assert large > small + 2**24
    assert not runner.kv.bytes.any()


def test_the_largest_batch_fills_a_step() -> None:
    layout = KvLayout.uniform(16, 1, 1, 4, "float32")
    batch = largest_batch(layout, 100, SchedulerConfig(4, 130), 2048)
    assert [len(sequence.token_ids) for sequence in batch.sequences] == [32, 32, 32, 32]
    assert [list(s.block_ids) for s in batch.sequences] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(sequence.sampling is not None for sequence in batch.sequences)


def test_the_largest_batch_keeps_to_the_context_and_the_blocks() -> None:
    layout = KvLayout.uniform(16, 1, 1, 4, "float32")
    (sequence,) = largest_batch(layout, 3, SchedulerConfig(1, 512), 60).sequences
    assert len(sequence.token_ids) == 60
    assert list(sequence.block_ids) == [0, 1, 2, 0]


def test_this_process_knows_its_memory() -> None:
    memory = process_memory()
    assert memory is not None
    assert 2**26 < memory.resident <= memory.peak
