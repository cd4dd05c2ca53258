"""How many KV blocks a GPU has room for, from what was measured on it. Plain numbers: no torch.

The terms are those of `memory_plan`, which estimates them from config.json; here a model is loaded and its
largest step was computed, so that they are known (vLLM's profile, PagedAttention, Kwon et al. 2023,
https://arxiv.org/abs/2309.06180).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Final

from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.sizing.plan import GIB, RUNTIME_BYTES, size_text

CONTEXT_BYTES: Final = GIB // 2
"""Of a CUDA context, which is there before a process can ask for its device's memory."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Bytes, at one moment."""

    free: int
    """Of the whole device, whoever has the rest."""

    reserved: int
    """What torch's allocator has taken, in use or not."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Bytes on one device, measured."""

    total: int
    """All memory of the device."""

    free: int
    """What nobody has while the engine holds its model and nothing else."""

    model: int
    """Weights and tables."""

    activations: int
    """Most that the largest step took beside them."""

    kept: int
    """What stays there from step to step: inputs, buffers for copies, captured decodes."""

    runtime: int
    """Outside torch's allocator: the context, loaded kernels and libraries."""


def runtime_bytes(total: int, before: GpuReading, after: GpuReading) -> int:
    """What the process has outside torch's allocator, from readings around the work that brings it in.

    The device knows of all processes together: others must not come or go meanwhile. At least what a
    context with its libraries is known to take.
    """
    outside_before = total - before.free - before.reserved
    outside_after = total - after.free - after.reserved
    return max(RUNTIME_BYTES["cuda"], CONTEXT_BYTES + outside_after - outside_before)


def fit_blocks(
    use: GpuUse,
    layout: KvLayout,
    max_model_len: int,
    utilization: float,
    kv_cache_memory: float | None,
) -> int:
    """KV blocks for what may be used and is free; or for `kv_cache_memory` GiB, if that is given.

    ConfigError, with all figures, when a request of `max_model_len` tokens does not fit, or when others
    hold what may be used.
    """
    asked = kv_cache_memory is not None
    room = floor(kv_cache_memory * GIB) if kv_cache_memory is not None else _left(use, utilization)
    num_blocks = max(0, room) // layout.num_bytes
    num_needed = -(-max_model_len // layout.block_size)
    if num_blocks < num_needed:
        raise ConfigError(_too_small(use, layout, max_model_len, utilization, room, asked=asked))
    available = use.free - use.activations - use.kept
    if num_blocks * layout.num_bytes > available:
        flag = "--kv-cache-memory" if asked else "--gpu-memory-utilization"
        raise ConfigError(
            f"{size_text(num_blocks * layout.num_bytes)} of KV cache do not fit this GPU of"
            f" {size_text(use.total)}: {size_text(use.free)} are free beside the model, of which the"
            f" largest step takes {size_text(use.activations + use.kept)}. Others on the GPU have the"
            f" rest: lower {flag}"
        )
    return num_blocks


def terms(use: GpuUse) -> Mapping[str, int]:
    """What a GPU holds besides KV, with the flags that change it."""
    return {
        "model": use.model,
        "activations (--max-num-batched-tokens, --max-num-seqs)": use.activations,
        "buffers and CUDA graphs (--max-num-seqs, --enforce-eager)": use.kept,
        "runtime": use.runtime,
    }


def _left(use: GpuUse, utilization: float) -> int:
    """What may be used, without what is used; negative when the model itself does not fit."""
    return floor(use.total * utilization) - sum(terms(use).values())


def _too_small(
    use: GpuUse,
    layout: KvLayout,
    max_model_len: int,
    utilization: float,
    room: int,
    *,
    asked: bool,
) -> str:
    num_needed = -(-max_model_len // layout.block_size)
    needed = f"a request of --max-model-len {max_model_len} needs {size_text(num_needed * layout.num_bytes)}"
    num_tokens = max(0, room) // layout.num_bytes * layout.block_size
    if asked:
        return f"--kv-cache-memory {room / GIB:g} GiB holds the KV of {num_tokens} tokens, but {needed}"
    listed = ", ".join(f"{size_text(size)} {name}" for name, size in terms(use).items() if size)
    return (
        f"of this GPU's {size_text(use.total)}, {size_text(use.total * utilization)} may be used"
        f" (--gpu-memory-utilization {utilization:g}): {listed} leave {size_text(room)} for KV, which is"
        f" {num_tokens} tokens, but {needed}"
    )
