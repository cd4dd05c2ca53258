"""Builds what an engine computes with on a GPU: a KV cache of what a trial of the largest step leaves.

Nobody else does so on the same GPU meanwhile.
"""

from __future__ import annotations

import gc
from functools import partial
from time import perf_counter
from typing import NamedTuple

import structlog

from pagemesh.config import CacheConfig, HardwareConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cpu_runner import num_swap_blocks_for
from pagemesh.engine.cuda.device import Gpu
from pagemesh.engine.cuda.kv_pool import DeviceBlockMover, KvPool
from pagemesh.engine.cuda.kv_stager import KvStager
from pagemesh.engine.cuda.peer_pools import PeerPools, name_pool
from pagemesh.engine.cuda.pinned import HostBuffers
from pagemesh.engine.cuda.runner import CudaRunner
from pagemesh.errors import ConfigError, InternalError
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.loading import profile_run
from pagemesh.loading.parts import EngineParts, StartClock
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.batch import Batch
from pagemesh.sizing import gpu_budget
from pagemesh.sizing.check import check_swap_space

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Parts(NamedTuple):
    pool: KvPool
    stager: KvStager
    runner: CudaRunner


class GpuBuilder:
    """Measures a loaded model on a device, and builds its KV cache with all that works on it."""

    def __init__(
        self,
        model: LoadedModel,
        layout: KvLayout,
        settings: tuple[CacheConfig, SchedulerConfig, HardwareConfig],
        gpu: Gpu,
        clock: StartClock,
    ) -> None:
        """Of the scheduler's settings, steps are so large that any prompt fits into one that must. The clock is told
        what building takes."""
        self._model = model
        self._layout = layout
        self._cache, self._scheduler, self._hardware = settings
        self._gpu = gpu
        self._clock = clock

    def build(self, max_num_blocks: int | None, kv_descriptor: int | None) -> EngineParts:
        """Reserve the KV cache, of `max_num_blocks` at most; nobody else may load on the device meanwhile.

        The buffers through which KV is read and written lie in the memory behind `kv_descriptor`, or in
        memory of their own. With a descriptor, the cache is shared with other engines' processes, where the
        device allows it: it is then there until this process ends.

        Raises ConfigError, with all figures, when one request of full length does not fit, and when the
        machine has no room for the swap space.
        """
        cache, layout = self._cache, self._layout
        accelerator = self._gpu.accelerator
        num_swap_blocks = num_swap_blocks_for(layout, cache.swap_space)
        check_swap_space(cache)
        buffers = HostBuffers.reserve(layout, num_swap_blocks, kv_descriptor)
        buffers.pin(accelerator)
        use, seconds = self._measure(buffers)
        num_blocks = gpu_budget.fit_blocks(
            use,
            layout,
            self._model.max_model_len,
            self._hardware.gpu_memory_utilization,
            cache.kv_cache_memory,
        )
        num_blocks = min(num_blocks, max_num_blocks or num_blocks)
        self._log(use, num_blocks, num_swap_blocks)
        peers = PeerPools(layout, self._gpu.sharing)
        parts = self._assemble(num_blocks, buffers, accelerator, peers)
        # A cache so large has offsets of more bits, for which kernels are compiled anew; and scratch
        # memory shall be as large as any step needs it, rather than grow while requests are served.
        with self._clock.phase("compile"):
            for batch in (*self._first_steps(), self._largest_batch(num_blocks)):
                self._dummy_run(parts.runner, batch)
            profile_run.move_blocks(parts.runner, parts.stager, num_blocks, num_swap_blocks)
            parts.stager.dummy_run()
        self._capture(parts.runner)
        name = None if kv_descriptor is None else name_pool(parts.pool, self._gpu.sharing)
        kv = StagedKv(layout, num_blocks, buffers.slots.numpy(), parts.stager, name)
        own_pool = parts.pool if name is None else None
        release = partial(_release, own_pool, peers, buffers, accelerator)
        return EngineParts(
            parts.runner,
            kv,
            num_blocks,
            num_swap_blocks,
            seconds,
            works_beside_host=parts.runner.works_beside_host,
            release=release,
        )

    def _assemble(
        self,
        num_blocks: int,
        buffers: HostBuffers,
        accelerator: Accelerator,
        peers: PeerPools | None = None,
    ) -> _Parts:
        pool = KvPool(self._layout, num_blocks, accelerator.device)
        # Zeros are there before any stream looks.
        accelerator.synchronize()
        mover = DeviceBlockMover(pool, accelerator, buffers.swap_space)
        stager = KvStager(pool, accelerator, buffers.slots, peers)
        runner = CudaRunner(
            self._model,
            pool,
            mover,
            accelerator,
            max_num_seqs=self._scheduler.max_num_seqs,
            max_num_batched_tokens=self._scheduler.max_num_batched_tokens,
        )
        return _Parts(pool, stager, runner)

    def _measure(self, buffers: HostBuffers) -> tuple[gpu_budget.GpuUse, float]:
        """What everything but the KV takes, and the seconds of the largest step.

        With a cache that is as large as that step needs it, and a request of full length, for whose block
        table captured decodes have room. All of it is gone again afterwards.
        """
        gpu = self._gpu
        loaded = gpu.read()
        batch, num_blocks = self._largest_step()
        # A stream and memory for graphs of its own, so that nothing of it is kept by others.
        parts = self._assemble(num_blocks, buffers, gpu.accelerator.beside())
        first = self._first_steps()
        with self._clock.phase("compile"):
            for each in (*first, batch):
                self._dummy_run(parts.runner, each)
        # What stays from step to step is there by now, and nothing is compiled any more.
        idle = gpu.read()
        gpu.reset_peak()
        with self._clock.phase("measure"):
            for each in first:
                self._dummy_run(parts.runner, each)
            started_at = perf_counter()
            self._dummy_run(parts.runner, batch)
            seconds = perf_counter() - started_at
        activations = gpu.peak() - idle.reserved
        self._capture(parts.runner)
        after = gpu.read()
        kept = after.reserved - loaded.reserved - parts.pool.planes.nbytes
        del parts
        gc.collect()
        use = gpu_budget.GpuUse(
            total=gpu.total_bytes,
            free=gpu.read().free,
            model=loaded.reserved,
            activations=max(0, activations),
            kept=max(0, kept),
            runtime=gpu_budget.runtime_bytes(gpu.total_bytes, loaded, after),
        )
        return use, seconds

    def _largest_step(self) -> tuple[Batch, int]:
        """A step that fills every limit, and the blocks that it, or one request, needs."""
        scheduler = self._scheduler
        num_seqs, block_size = scheduler.max_num_seqs, self._layout.block_size
        num_step_blocks = scheduler.max_num_batched_tokens // block_size + num_seqs
        num_blocks = max(num_step_blocks, -(-self._model.max_model_len // block_size))
        return self._largest_batch(num_blocks), num_blocks

    def _largest_batch(self, num_blocks: int) -> Batch:
        return profile_run.largest_batch(
            self._layout,
            num_blocks,
            self._scheduler,
            self._model.max_model_len,
            generates=self._model.generates,
        )

    def _first_steps(self) -> list[Batch]:
        return profile_run.warm_up_batches(
            self._layout,
            self._scheduler,
            self._model.max_model_len,
            generates=self._model.generates,
        )

    def _capture(self, runner: CudaRunner) -> None:
        if not self._hardware.enforce_eager:
            with self._clock.phase("capture"):
                runner.capture()

    def _dummy_run(self, runner: CudaRunner, batch: Batch) -> None:
        try:
            runner.dummy_run(batch)
        except InternalError as error:
            if error.reason != "OUT_OF_MEMORY":
                raise
            num_tokens = self._scheduler.max_num_batched_tokens
            raise ConfigError(
                f"a step of --max-num-batched-tokens {num_tokens} tokens cannot be computed on this GPU:"
                f" {error.message}"
            ) from error

    def _log(self, use: gpu_budget.GpuUse, num_blocks: int, num_swap_blocks: int) -> None:
        log.info(
            "memory",
            device=str(self._gpu.accelerator.device),
            total_bytes=use.total,
            usable_bytes=int(use.total * self._hardware.gpu_memory_utilization),
            free_bytes=use.free,
            model_bytes=use.model,
            activation_bytes=use.activations,
            graph_bytes=use.kept,
            runtime_bytes=use.runtime,
            taken_bytes=sum(gpu_budget.terms(use).values()),
            kv_bytes=num_blocks * self._layout.num_bytes,
            swap_bytes=num_swap_blocks * self._layout.num_bytes,
        )


def _release(
    pool: KvPool | None, peers: PeerPools, buffers: HostBuffers, accelerator: Accelerator
) -> None:
    """Without a pool when others may have it open: to free it then is undefined."""
    peers.close()
    try:
        accelerator.synchronize()
    except RuntimeError:
        # A device that computes nothing any more gives nothing back, and has said why before.
        log.warning("the GPU's memory is left to the end of the process", exc_info=True)
        return
    buffers.unpin(accelerator)
    if pool is not None:
        pool.free()
