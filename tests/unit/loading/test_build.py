"""An engine on a GPU that the CPU plays: measured, built, computing, and given back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import structlog

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.cuda.device import locked
from pagemesh.engine.cuda.kv_pool import KvPool
from pagemesh.engine.engine import EngineCore
from pagemesh.errors import ConfigError
from pagemesh.kernels.dispatch import using
from pagemesh.loading import engine as loading
from pagemesh.loading.engine import load_engine
from pagemesh.scheduler.scheduler import Scheduler
from pagemesh.sizing import check
from pagemesh.sizing.gpu_budget import GpuReading
from pagemesh.sizing.machine import MachineMemory
from tests.fakes.inbox import Inbox
from tests.identity.encoder_checkpoints import RECIPES, make_encoder
from tests.support.host_gpu import HostGpu
from tests.unit.scheduler.builders import FixedGrowth, FixedWay, make_request

GIB, MIB = 2**30, 2**20


def load(
    model: Path,
    gpu: HostGpu,
    cache: CacheConfig | None = None,
    utilization: float = 0.9,
    scheduler: SchedulerConfig | None = None,
    *,
    enforce_eager: bool = True,
) -> EngineCore:
    """Without graphs: the CPU's way of writing KV knows no padding."""
    return load_engine(
        ModelConfig(str(model), max_model_len=128),
        cache or CacheConfig(),
        scheduler or SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        HardwareConfig(gpu_memory_utilization=utilization, enforce_eager=enforce_eager),
        gpu=gpu,
    )


def test_the_cache_is_what_the_measured_step_leaves_of_the_share(demo_model: Path) -> None:
    # A block of the demo model takes 96 KiB; the trial's cache has 64 / 16 + 4 of them.
    trial_pool = 8 * 96 * 1024
    gpu = HostGpu(
        total_bytes=2 * GIB,
        readings=[
            GpuReading(free=1500 * MIB, reserved=20 * MIB),  # loaded
            GpuReading(free=1490 * MIB, reserved=30 * MIB),  # with a runner
            GpuReading(free=1200 * MIB, reserved=28 * MIB + trial_pool),  # after the step
            GpuReading(free=1400 * MIB, reserved=20 * MIB),  # all of that gone
        ],
        peak_bytes=90 * MIB,
    )
    with structlog.testing.capture_logs() as logs:
        engine = load(demo_model, gpu, utilization=0.75)
    (figures,) = [entry for entry in logs if entry["event"] == "memory"]
    # The device lost 300 MiB, of which torch took 8 and the pool: the rest is outside.
    runtime = 512 * MIB + 300 * MIB - 8 * MIB - trial_pool
    left = 1536 * MIB - (20 + 60 + 8) * MIB - runtime
    assert engine.info.num_blocks == left // (96 * 1024)
    assert figures["model_bytes"] == 20 * MIB
    assert figures["activation_bytes"] == 60 * MIB
    assert figures["graph_bytes"] == 8 * MIB
    assert figures["runtime_bytes"] == runtime
    assert figures["total_bytes"] == 2 * GIB
    assert figures["usable_bytes"] == 1536 * MIB
    assert figures["kv_bytes"] == engine.info.num_blocks * 96 * 1024
    engine.stop()


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_steps_are_captured_for_the_measure_and_for_use(
    demo_model: Path, enforce_eager: bool
) -> None:
    with structlog.testing.capture_logs() as logs, using("reference", "write_kv"):
        load(demo_model, HostGpu(), utilization=0.15, enforce_eager=enforce_eager).stop()
    events = [entry["event"] for entry in logs]
    (loaded,) = [entry for entry in logs if entry["event"] == "engine loaded"]
    phases = {"read_seconds", "compile_seconds", "measure_seconds"}
    phases |= set() if enforce_eager else {"capture_seconds"}
    assert {name for name in loaded if name.endswith("_seconds")} == phases
    captured = [] if enforce_eager else ["steps captured", "decodes captured"]
    assert events == [*captured, "memory", *captured, "engine loaded"]


def test_a_cache_may_have_a_size_of_its_own(demo_model: Path) -> None:
    engine = load(demo_model, HostGpu(), CacheConfig(kv_cache_memory=0.125))
    assert engine.info.num_blocks == 128 * 1024 // 96
    engine.stop()


def test_a_request_that_does_not_fit_is_refused(demo_model: Path) -> None:
    gpu = HostGpu(readings=[GpuReading(free=7 * GIB, reserved=7 * GIB)])
    with pytest.raises(
        ConfigError, match=r"leave -0\.40 GiB for KV, which is 0 tokens, but a requ"
    ):
        load(demo_model, gpu)


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(demo_model: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(demo_model, HostGpu(total_bytes=GIB), utilization=0.5)
    assert refusal.value.message.startswith(
        "of this GPU's 1.00 GiB, 0.50 GiB may be used (--gpu-memory-utilization 0.5), but 0.62 GiB are"
        " needed before the first KV block: 15.5 MiB weights, "
    )


def test_a_swap_space_that_the_machine_has_no_room_for_is_refused(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "machine_memory", lambda: MachineMemory(GIB, GIB))
    with pytest.raises(ConfigError, match=r"1\.00 GiB of memory, but .* 1\.00 GiB swap space"):
        load(demo_model, HostGpu(), CacheConfig(kv_cache_memory=0.125, swap_space=1.0))


def test_an_encoder_has_the_blocks_of_a_step_and_no_more(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    engine = load_engine(ModelConfig(str(tmp_path)), CacheConfig(), scheduler, gpu=HostGpu())
    assert engine.info.num_blocks == 100 // 16 + 4
    engine.stop()


def test_requests_that_are_swapped_give_the_tokens_of_an_undisturbed_engine(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four requests that grow beyond a cache of 14 blocks, with a swap space of 85."""
    greedy = partial(Scheduler, preemption=FixedWay(True), forecast=FixedGrowth(0))
    monkeypatch.setattr(loading, "Scheduler", greedy)
    tokens = []
    for cache in (
        CacheConfig(kv_cache_memory=0.125),
        CacheConfig(kv_cache_memory=14.5 * 96 / 2**20, swap_space=0.0078125),
    ):
        engine = load(demo_model, HostGpu(), cache)
        inbox = Inbox()
        engine.start(inbox)
        names = ["a", "b", "c", "d"]
        for index, name in enumerate(names):
            engine.submit(make_request(name, 40 + index, max_tokens=40, ignore_eos=True))
        for name in names:
            inbox.wait_for_end(name)
        tokens.append([inbox.tokens[name] for name in names])
        preempted = engine.load().num_preemptions
        engine.stop()
    assert tokens[0] == tokens[1]
    assert preempted > 0


def test_an_engine_that_has_stopped_gives_its_memory_back(demo_model: Path) -> None:
    gpu = HostGpu()
    engine = load(demo_model, gpu, CacheConfig(kv_cache_memory=0.125, swap_space=0.125))
    pools = [each for each in _pools() if each.num_blocks == engine.info.num_blocks]
    assert [pool.planes.untyped_storage().nbytes() for pool in pools] == [
        engine.info.num_blocks * 96 * 1024
    ]
    # The slots and the swap space; what else is pinned was made by the accelerator.
    assert [each.dim() for each in gpu.accelerator._pinned].count(2) == 2
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 20, max_tokens=3, ignore_eos=True))
    inbox.wait_for_end("a")
    engine.stop()
    engine.stop()
    assert pools[0].planes.untyped_storage().nbytes() == 0
    assert [each.dim() for each in gpu.accelerator._pinned].count(2) == 0


def test_an_engine_whose_device_was_lost_stops_all_the_same(demo_model: Path) -> None:
    gpu = HostGpu()
    engine = load(demo_model, gpu, CacheConfig(kv_cache_memory=0.125))
    gpu.accelerator.is_lost = True
    with structlog.testing.capture_logs() as logs:
        engine.stop()
    assert [entry["event"] for entry in logs] == [
        "the GPU's memory is left to the end of the process"
    ]


def _pools() -> list[KvPool]:
    return [each for each in gc.get_objects() if type(each) is KvPool]


def test_only_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    code = """
import sys
from functools import partial
from pathlib import Path
from pagemesh.engine.cuda.device import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with structlog.testing.capture_logs() as logs, locked(path, patience=0.2):
            pass
        assert [entry["event"] for entry in logs] == [
            "another engine loads for too long; not waiting for it"
        ]
        # A lock does not outlive its process, however that ends.
        holder.kill()
        holder.wait()
        with structlog.testing.capture_logs() as logs, locked(path, patience=5):
            pass
        assert logs == []
