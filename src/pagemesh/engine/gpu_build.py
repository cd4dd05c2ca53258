"""Loads a model into a GPU and builds what computes it there, while no other engine does so on the same one."""

from __future__ import annotations

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.cuda.build import GpuBuilder
from pagemesh.engine.cuda.device import Gpu
from pagemesh.engine.cuda.failures import failing_at_start
from pagemesh.engine.cuda.weight_writer import DeviceFiller
from pagemesh.engine.engine import Loaded
from pagemesh.engine.fitting import fitting, layout_of, max_num_blocks
from pagemesh.engine.identical_loading import check_on_device
from pagemesh.engine.start_clock import StartClock
from pagemesh.models.loader import load_model
from pagemesh.models.place import Place
from pagemesh.sizing.check import check_before_loading


def load_on_gpu(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig,
    kv_descriptor: int | None,
    gpu: Gpu,
) -> Loaded:
    """Load a model and build what computes it, with the KV cache that the GPU's memory leaves room for.

    The buffers to it lie in the memory behind `kv_descriptor`, or in memory of their own, see `GpuBuilder`. By
    config.json alone it is decided first whether there can be room, before weights are read.

    Raises ConfigError when the settings fit neither the model nor the GPU, others have its memory, or, where equal
    tokens are required, when its kernels do not keep bits.
    """
    check_before_loading(model, cache, scheduler, hardware, gpu.total_bytes)
    clock = StartClock()
    with gpu.alone():
        # Straight into the GPU's memory: a host may have less than the model takes.
        with clock.phase("read"), failing_at_start("the model's weights"):
            place = Place(DeviceFiller(gpu.accelerator), cache.kv_cache_dtype)
            loaded = load_model(model, place)
        layout = layout_of(loaded, cache)
        limits = fitting(scheduler, loaded)
        builder = GpuBuilder(loaded, layout, (cache, limits, hardware), gpu, clock)
        built = builder.build(max_num_blocks(loaded, layout, limits), kv_descriptor)
        trouble = check_on_device(
            loaded,
            layout,
            built,
            gpu.accelerator,
            required=hardware.require_identical_tokens,
        )
    return Loaded(loaded, layout, limits, built, trouble, clock.seconds)
