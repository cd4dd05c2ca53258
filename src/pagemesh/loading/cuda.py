"""Whether a GPU computes, and can do what is asked of it; loads a model into it and builds what computes it there."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import structlog
import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.cuda.accelerator import failing_at_start
from pagemesh.engine.cuda.device import Gpu
from pagemesh.errors import ConfigError
from pagemesh.loading.cuda_parts import GpuBuilder
from pagemesh.loading.cuda_weights import DeviceWeightWriter
from pagemesh.loading.identical import check_on_device
from pagemesh.loading.parts import Loaded, StartClock, fitting, layout_of, max_num_blocks
from pagemesh.models.choices import choose_kv_dtype
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import ModelTarget
from pagemesh.sizing.check import check_before_loading

log = structlog.get_logger(__name__)

_LEAST_CAPABILITY: Final = (8, 0)
"""Ampere's: the kernels load ahead by its asynchronous copies and multiply bfloat16, and older ones can neither."""

_DRIVER_FILE: Final = Path("/dev/nvidiactl")
"""There where NVIDIA's driver is loaded."""


def choose_device(hardware: HardwareConfig, cache: CacheConfig) -> torch.device:
    """The device that is asked for, or the best that there is.

    ConfigError for a GPU where torch sees none or too old a one, and for KV of a type that the device has no
    kernels for.
    """
    capability = None if hardware.device == "cpu" else visible_capability()
    if hardware.device == "cuda" and capability is None:
        raise ConfigError(
            f"--device is 'cuda', but torch sees no GPU on this machine: {why_no_gpu()}"
        )
    if capability is None:
        if hardware.device == "auto" and _DRIVER_FILE.exists():
            log.warning(
                "the CPU computes, beside a GPU that torch does not see", reason=why_no_gpu()
            )
        return torch.device("cpu")
    if capability < _LEAST_CAPABILITY:
        raise ConfigError(
            f"this machine's GPU has compute capability {capability[0]}.{capability[1]}, but the kernels are for"
            f" {_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]} and later; --device cpu does without"
        )
    choose_kv_dtype(cache.kv_cache_dtype, "float32", "cuda", capability=capability)
    return torch.device("cuda", 0)


def visible_capability() -> tuple[int, int] | None:
    """Compute capability of the first GPU that torch sees; None without one."""
    with warnings.catch_warnings():
        # What torch has to say where it sees none, `why_no_gpu` says in a sentence.
        warnings.simplefilter("ignore")
        return torch.cuda.get_device_capability(0) if torch.cuda.is_available() else None


def why_no_gpu() -> str:
    """What keeps torch from seeing one: its own build, the driver, or a variable that hides them all."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built for CPUs alone"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        # "... is too old (found version 11040). Please update ...", and the like.
        reason = str(error).split(". ")[0].removesuffix(".")
    else:
        reason = "CUDA finds no device"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return reason if hidden is None else f"{reason} (CUDA_VISIBLE_DEVICES is {hidden!r})"


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
            target = ModelTarget(DeviceWeightWriter(gpu.accelerator), cache.kv_cache_dtype)
            loaded = load_model(model, target)
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
