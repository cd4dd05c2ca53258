"""The memory plan of a model that transformers runs, of which less is known than of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagemesh.core.kv import BlockLayout
from pagemesh.errors import ConfigError
from pagemesh.sizing.plan import (
    ITEM_BYTES,
    RUNTIME_BYTES,
    Hardware,
    MemoryPlan,
    StepLimits,
    StepWidths,
    step_bytes,
)

if TYPE_CHECKING:
    from pagemesh.models.transformers_backend.read import Outline


def make_outline_plan(
    outline: Outline,
    dtype: str,
    block_size: int,
    limits: StepLimits,
    on: Hardware,
    kv_dtype: str | None = None,
) -> MemoryPlan:
    """Plan such a model; its KV is of its own type unless told otherwise.

    ConfigError for more than one device, over which it cannot be split.
    """
    if on.tensor_parallel_size > 1:
        raise ConfigError(
            f"--tensor-parallel-size is {on.tensor_parallel_size}, but must be 1 for"
            f" {outline.architecture}, which transformers runs"
        )
    heads = outline.num_heads + outline.num_kv_heads
    widths = StepWidths(
        hidden=outline.hidden_size,
        attending=2 * heads * outline.head_dim,
        inner=3 * outline.inner_size + outline.hidden_size,
        vocab=outline.vocab_size,
    )
    return MemoryPlan(
        usable_bytes=on.usable_bytes,
        weight_bytes=ITEM_BYTES[dtype] * outline.num_parameters,
        runtime_bytes=RUNTIME_BYTES[on.kind],
        table_bytes=0,
        activation_bytes=step_bytes(widths, dtype, limits),
        layout=BlockLayout(
            block_size=block_size,
            num_layers=outline.num_layers,
            num_kv_heads=outline.num_kv_heads,
            head_dim=outline.head_dim,
            dtype=kv_dtype or dtype,
        ),
        max_model_len=limits.max_model_len,
    )
