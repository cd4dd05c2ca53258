"""Loads a model for the CPU with the fastest kernels that give every sequence its own bits in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import structlog
import torch

from pagemesh.config import CpuIsaName, HardwareConfig, ModelConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit.cpu_isa import (
    CpuIsa,
    current_isa,
    may_use_tiles,
    processor_isas,
    settle_isa,
)
from pagemesh.loading.identity_check import find_difference, num_blocks_of_check
from pagemesh.loading.parts import EngineParts
from pagemesh.models.decoder import Decoder
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.parameters import ON_HOST, ModelTarget

log = structlog.get_logger(__name__)

_MOST_WEIGHTS: Final = 1 << 28
"""Weights of the layers that are looked at, about: each is read some ten times, in less than two seconds."""

_BLOCK_SIZE: Final = 16

_REFUSED: Final = "--require-identical-tokens is set, but the check at load found "

Check = Callable[[LoadedModel], str | None]


class IdenticalModel(NamedTuple):
    """A model, and how it keeps the promise of equal tokens."""

    model: LoadedModel

    trouble: str
    """What is not as it should be: a slower class of kernels had to be taken, or none of them keeps the
    promise; empty when all is well."""


def check_on_host(model: LoadedModel) -> str | None:
    """What differs in its bits, see `find_difference`; of a large model its first layers are looked at."""
    num_layers = max(1, _MOST_WEIGHTS // max(1, model.shape.num_layer_weights))
    part, decoder = model, model.decoder
    if num_layers < model.shape.num_layers:
        if not isinstance(decoder, Decoder):
            return None
        decoder = decoder.first_layers(num_layers)
        shape = replace(model.shape, num_layers=num_layers)
        attention = model.layer_attention[:num_layers]
        part = replace(model, decoder=decoder, shape=shape, layer_attention=attention)
    block_size = min(_BLOCK_SIZE, model.max_model_len)
    num_threads = torch.get_num_threads()
    runner = CpuRunner(part, block_size, num_blocks_of_check(block_size))
    try:
        with torch.inference_mode():
            return find_difference(
                runner, model, block_size, lambda rows: decoder.logits(rows.to(model.dtype))
            )
    finally:
        # Its steps are small, and the engine's may be large.
        torch.set_num_threads(num_threads)


def check_on_device(
    model: LoadedModel,
    layout: KvLayout,
    built: EngineParts,
    accelerator: Accelerator,
    *,
    required: bool,
) -> str:
    """What the check finds on a GPU, where no slower kernels are; empty when all is well.

    ConfigError when something is wrong and `required`.
    """
    if built.num_blocks < num_blocks_of_check(layout.block_size):
        return ""

    def logits(rows: torch.Tensor) -> torch.Tensor:
        with accelerator.computing():
            on_device = rows.to(accelerator.device, model.dtype)
            return model.decoder.logits(on_device).cpu()

    difference = find_difference(built.runner, model, layout.block_size, logits)
    if difference is None:
        return ""
    trouble = f"that kernels do not keep bits on this GPU: {difference}"
    if required:
        raise ConfigError(_REFUSED + trouble)
    log.error("answers may depend on their company", difference=difference)
    return trouble


def load_identical(
    config: ModelConfig,
    hardware: HardwareConfig,
    check: Check = check_on_host,
    target: ModelTarget = ON_HOST,
) -> IdenticalModel:
    """Load with the class of kernels that is asked for, or, where bits differ, with the next that keeps them.

    ConfigError when the class cannot be used, or bits differ although --require-identical-tokens is set.
    """
    settle_cpu_isa(hardware.cpu_isa)
    trouble = ""
    model = load_model(config, target)
    for lesser in (*_lesser_isas(), None):
        difference = check(model)
        if difference is None:
            return IdenticalModel(model, trouble)
        isa = current_isa()
        trouble = f"that kernels for {isa} do not keep bits on this processor: {difference}"
        if hardware.require_identical_tokens:
            raise ConfigError(_REFUSED + trouble)
        log.error("answers may depend on their company", cpu_isa=isa, difference=difference)
        if lesser is not None:
            del model
            settle_isa(lesser)
            log.warning("a slower class of kernels is taken", cpu_isa=lesser)
            model = load_model(config, target)
    return IdenticalModel(model, f"{trouble}; nor do those of any other class")


def _lesser_isas() -> Iterator[CpuIsa]:
    isas = processor_isas()
    yield from isas[isas.index(current_isa()) + 1 :] if current_isa() in isas else ()


REFUSED: Final = "Linux refuses this process AMX's tile registers (arch_prctl ARCH_REQ_XCOMP_PERM), as some sandboxes do"


def settle_cpu_isa(asked: CpuIsaName, may_use_tiles: Callable[[], bool] = may_use_tiles) -> None:
    """Compile kernels for the class that is asked for, before any is; ConfigError if it cannot be.

    What auto takes is less than the processor has only where Linux refuses it, which is warned of.
    """
    has = processor_isas()
    if asked == "auto":
        if has[0] == CpuIsa.AMX and not may_use_tiles():
            log.warning("a lesser class of processor computes", reason=REFUSED, cpu_isa=has[1])
    else:
        isa = CpuIsa(asked)
        if isa not in has:
            names = ", ".join(each for each in has if each != CpuIsa.GENERIC) or "none of them"
            raise ConfigError(f"--cpu-isa is {asked!r}, but this processor has {names}")
        if isa == CpuIsa.AMX and not may_use_tiles():
            raise ConfigError(f"--cpu-isa is {asked!r}, but {REFUSED}")
        settle_isa(isa)
    log.info("kernels for this processor", cpu_isa=current_isa())
