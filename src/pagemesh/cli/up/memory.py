"""How the workers of a mesh divide the memory of a host, or its GPUs, and how long a context that leaves room for.

By sums over config.json, as `pagemesh plan` makes them: nothing is loaded. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from pagemesh.cli.plan import plan_model
from pagemesh.cli.settings import PlanConfig, UpConfig
from pagemesh.cli.up.sharing import can_share, smallest_gpu
from pagemesh.config import CPU_KV_CACHE_MEMORY
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.sizing.machine import MachineMemory, machine_memory
from pagemesh.sizing.plan import GIB, MemoryPlan, size_text

_KV_SHARE: Final = 0.5
"""Of the memory that is free when all models are loaded, as far as requests can use it."""

_CAUTION: Final = 0.95
"""Of the KV that sums promise of a GPU; its worker measures."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits."""

    kv_cache_memory: float | None = None
    """GiB for each worker; None where a GPU's worker takes what is left there, or nothing could be told."""

    max_model_len: int | None = None
    """Tokens, where they are fewer than each model's own context."""

    own_max_model_len: int | None = None
    """The longest of these, then."""


def fit_machine(config: UpConfig, gpus: Sequence[str]) -> Fit:
    """For workers on these GPUs, or on this machine's processors without any. ConfigError when they do not fit."""
    if gpus:
        size = smallest_gpu(len(gpus))
        return Fit() if size is None else fit_gpus(config, size, len(gpus))
    memory = machine_memory()
    return Fit() if memory is None else fit_host(config, memory)


def fit_host(config: UpConfig, memory: MachineMemory) -> Fit:
    """For workers on CPUs, which share a model's weights. ConfigError, with what would help, when their models are
    more than the memory."""
    plans = _plans(config, usable=memory.total)
    if not plans:
        return Fit()
    each = config.prefill + config.decode
    needed = _needed(plans, each)
    if needed > memory.total:
        raise ConfigError(_too_much(config, plans, memory.total))
    given = config.cache.kv_cache_memory
    if given is None:
        left = max(0, memory.available - needed)
        share = left * _KV_SHARE / (each * len(plans))
        used = max(_most_used(plan, config.scheduler.on("cpu").max_num_seqs) for plan in plans)
        given = max(CPU_KV_CACHE_MEMORY, floor(min(share, used) / GIB * 100) / 100)
    return _with_context(plans, [given * GIB] * len(plans), Fit(kv_cache_memory=given))


def _needed(plans: list[MemoryPlan], num_workers: int) -> int:
    """Bytes of so many workers of each model before the first KV block."""
    weights = sum(plan.weight_bytes for plan in plans)
    others = sum(plan.usable_bytes - plan.kv_bytes for plan in plans) - weights
    num_copies = 1 if can_share(num_workers) else num_workers
    return weights * num_copies + others * num_workers


def _most_used(plan: MemoryPlan, num_seqs: int) -> int:
    """Bytes of KV that requests of full length take in every slot."""
    return num_seqs * plan.max_model_len * plan.kv_bytes_per_token


def fit_gpus(config: UpConfig, gpu_bytes: int, num_gpus: int) -> Fit:
    """For workers on GPUs of so many bytes, which they take by turns. ConfigError as for hosts."""

    def plans_with(num_prefill: int) -> list[MemoryPlan]:
        num_workers = (num_prefill + config.decode) * len(config.served.models)
        share = config.hardware.gpu_memory_utilization / -(-num_workers // num_gpus)
        return _plans(config, int(gpu_bytes * share), gpu=True)

    plans = plans_with(config.prefill)
    if config.prefill and not _all_fit(plans) and _all_fit(plans_with(0)):
        raise ConfigError(
            f"{config.prefill} + {config.decode} workers of each model do not fit on {num_gpus} GPUs of"
            f" {size_text(gpu_bytes)}: with --prefill 0 they would fit"
        )
    return _with_context(plans, [plan.kv_bytes * _CAUTION for plan in plans], Fit())


def _all_fit(plans: list[MemoryPlan]) -> bool:
    return all(plan.kv_bytes > 0 for plan in plans)


def _with_context(plans: list[MemoryPlan], kv_bytes: list[float], fit: Fit) -> Fit:
    """The same for a context whose KV fits into so many bytes of each model's workers."""
    fitting = [
        int(room // plan.layout.num_bytes) * plan.layout.block_size
        for plan, room in zip(plans, kv_bytes, strict=True)
        if plan.step is None
    ]
    own = max((plan.max_model_len for plan in plans), default=0)
    # Without room for a token or two the worker says what is missing.
    if not fitting or min(fitting) >= own or min(fitting) < 2:
        return fit
    return Fit(fit.kv_cache_memory, min(fitting), own)


def _plans(config: UpConfig, usable: int, *, gpu: bool = False) -> list[MemoryPlan]:
    """Of each model that pagemesh computes itself; of another one nothing is known without loading much."""
    gib = max(1, usable) / GIB
    found = []
    for model in config.served.models:
        wanted = PlanConfig(
            model=model.source,
            hub=config.hub,
            memory=None if gpu else gib,
            gpu_memory=gib if gpu else None,
            gpu_memory_utilization=1.0,
            dtype=config.dtype,
            quantization=config.quantization,
            kv_cache_dtype=config.cache.kv_cache_dtype,
            max_model_len=config.max_model_len,
            block_size=config.cache.block_size,
            scheduler=config.scheduler,
        )
        try:
            folder = resolve_model_path(model.source, config.hub, need="config")
            if find_architecture(ConfigJson.read(folder / "config.json")) is not None:
                found.append(plan_model(wanted).plan)
        except ConfigError:
            # Whoever starts the mesh says what is wrong with it.
            continue
    return found


def _too_much(config: UpConfig, plans: list[MemoryPlan], total: int) -> str:
    each = config.prefill + config.decode
    text = (
        f"this machine has {size_text(total)} of memory, but {each} workers of each model need"
        f" {size_text(_needed(plans, each))} before the first KV block"
    )
    if config.prefill and _needed(plans, config.decode) <= total:
        text += ": with --prefill 0 they would fit"
    return text
