"""Refuses, before a model is loaded, what this machine's memory cannot hold, by its config.json.

A process that takes more than there is gets killed without a word, in the middle of everybody's requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_dtype, choose_kv_dtype, choose_max_model_len
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.sizing.machine import machine_memory, process_memory
from pagemesh.sizing.plan import (
    GIB,
    RUNTIME_BYTES,
    Hardware,
    StepLimits,
    activation_bytes,
    num_step_tokens,
    size_text,
    table_bytes,
    weight_bytes,
)
from pagemesh.sizing.weights import packed_weights

ACTIVATIONS = "activations (--max-num-batched-tokens, --max-num-seqs)"


def check_before_loading(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareConfig | None = None,
    gpu_bytes: int | None = None,
) -> None:
    """Raise ConfigError when what config.json promises is more than there is.

    That is the machine's memory, or, on a GPU of `gpu_bytes`, the share of it that `hardware` says.
    """
    on = Hardware("cpu" if gpu_bytes is None else "cuda", 0)
    try:
        folder = resolve_model_path(model.model, model.hub)
        settings = ConfigJson.read(folder / "config.json")
        architecture = find_architecture(settings)
        if architecture is None:
            return
        spec = architecture.make_spec(settings)
        dtype = choose_dtype(model.dtype, settings, architecture.dtypes)
        max_model_len = choose_max_model_len(model.max_model_len, spec, folder)
        packed = packed_weights(folder, settings, architecture, spec, model.quantization, on.kind)
    except ConfigError:
        # The loader says what is wrong.
        return
    choose_kv_dtype(cache.kv_cache_dtype, dtype, on.kind, causal=spec.causal)
    if cache.swap_space and not spec.causal:
        raise ConfigError(
            f"--swap-space is {cache.swap_space:g}, but must be 0 for an encoder, which keeps no KV"
        )
    num_tokens = num_step_tokens(
        scheduler.max_num_batched_tokens, max_model_len, causal=spec.causal
    )
    limits = StepLimits(num_tokens, scheduler.max_num_seqs, max_model_len)
    needs = {
        "weights": weight_bytes(spec, dtype, packed=packed.num_bytes),
        "tables": table_bytes(spec, dtype, max_model_len, on, packed.num_bytes),
        "runtime": RUNTIME_BYTES[on.kind],
        ACTIVATIONS: activation_bytes(spec, dtype, limits),
    }
    if gpu_bytes is None:
        check_memory(needs | reserved_bytes(cache))
    else:
        _check_gpu(needs, gpu_bytes, (hardware or HardwareConfig()).gpu_memory_utilization)


def check_swap_space(cache: CacheConfig) -> None:
    """Raise ConfigError when the machine has not so much memory beside this process; for GPUs, whose swap
    space is all that takes much of the host's."""
    held = process_memory()
    if held is not None and cache.swap_space:
        swap = {"swap space (--swap-space)": int(cache.swap_space * GIB)}
        check_memory({"process": held.resident} | swap)


def reserved_bytes(cache: CacheConfig) -> dict[str, int]:
    """What the settings set aside, committed only when it is used."""
    return {
        "KV cache (--kv-cache-memory)": int(cache.cpu_kv_memory * GIB),
        "swap space (--swap-space)": int(cache.swap_space * GIB),
    }


def _check_gpu(needs: Mapping[str, int], gpu_bytes: int, utilization: float) -> None:
    total = sum(needs.values())
    if total > gpu_bytes * utilization:
        raise ConfigError(
            f"of this GPU's {size_text(gpu_bytes)}, {size_text(gpu_bytes * utilization)} may be used"
            f" (--gpu-memory-utilization {utilization:g}), but {size_text(total)} are needed before the"
            f" first KV block: {_listed(needs)}"
        )


def _listed(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{size_text(size)} {name}" for name, size in needs.items() if size)


def check_memory(needs: Mapping[str, int]) -> None:
    """Raise ConfigError when this machine has less than these bytes together; each has the name it is told by."""
    machine = machine_memory()
    total = sum(needs.values())
    if machine is None:
        return
    if total > machine.total:
        raise ConfigError(
            f"this machine has {size_text(machine.total)} of memory, but {size_text(total)} are needed: {_listed(needs)}"
        )
