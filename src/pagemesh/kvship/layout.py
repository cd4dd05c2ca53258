"""The shape of KV blocks on the wire, and what two workers must agree on before blocks may travel."""

from __future__ import annotations

from pagemesh.engine.interface import BlockLayout
from pagemesh.errors import FailedPreconditionError
from pagemesh.v1 import types_pb2


def layout_to_proto(layout: BlockLayout) -> types_pb2.KvLayout:
    """The message for a layout."""
    return types_pb2.KvLayout(
        block_size=layout.block_size,
        layer_count=layout.num_layers,
        kv_head_count=layout.num_kv_heads,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
    )


def layout_from_proto(message: types_pb2.KvLayout) -> BlockLayout:
    """The layout that a message means."""
    return BlockLayout(
        block_size=message.block_size,
        num_layers=message.layer_count,
        num_kv_heads=message.kv_head_count,
        head_dim=message.head_dim,
        dtype=message.dtype,
    )


def describe_layout(layout: types_pb2.KvLayout) -> str:
    """A layout in words, for messages of errors."""
    return (
        f"{layout.block_size} tokens x {layout.layer_count} layers x {layout.kv_head_count} heads "
        f"x {layout.head_dim} {layout.dtype}"
    )


def describe_arithmetic(arithmetic: str) -> str:
    """A class of arithmetic in words, for people."""
    return arithmetic or "one that is not named"


def require_same_kv(
    worker: types_pb2.WorkerInfo,
    model_fingerprint: str,
    layout: types_pb2.KvLayout,
    arithmetic: str,
) -> None:
    """Raise FailedPreconditionError unless a caller's model, layout and arithmetic are those of this worker."""
    if model_fingerprint != worker.model_fingerprint:
        raise FailedPreconditionError(
            f"model_fingerprint is {model_fingerprint!r}, "
            f"but {worker.worker_id} serves {worker.model_fingerprint!r}",
            reason="MODEL_MISMATCH",
        )
    if layout != worker.kv_layout:
        raise FailedPreconditionError(
            f"kv_layout is {describe_layout(layout)}, "
            f"but {worker.worker_id} has {describe_layout(worker.kv_layout)}",
            reason="LAYOUT_MISMATCH",
        )
    # Routers pair no such workers, and the blocks have other names; but one of another version may ask.
    if arithmetic != worker.arithmetic:
        raise FailedPreconditionError(
            f"the caller's arithmetic is {describe_arithmetic(arithmetic)}, "
            f"but that of {worker.worker_id} is {describe_arithmetic(worker.arithmetic)}",
            reason="ARITHMETIC_MISMATCH",
        )
