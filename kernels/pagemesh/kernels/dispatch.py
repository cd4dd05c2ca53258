"""Which implementation of an operation runs: settled once, when a model is loaded, by the device.

On CUDA devices it is Triton's; on a CPU the fastest for it. Tests choose another with `using`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

import torch

Backend = Literal["cpu", "cuda", "reference"]
"""Whose code: made for the CPU, written in Triton, or the plain definition, which runs everywhere."""

Op = Literal[
    "block_copy",
    "expert_choice",
    "experts",
    "gated_activation",
    "linear",
    "logprobs",
    "paged_attention",
    "rms_norm",
    "sampling",
    "write_kv",
]
"""An operation that has several implementations, by its folder."""

_chosen: Final[dict[Op, Backend]] = {}


def backend_for(op: Op, device: torch.device) -> Backend:
    """Whose implementation to take for tensors on a device; ValueError where there is none."""
    if op in _chosen:
        return _chosen[op]
    match device.type:
        case "cpu":
            return "cpu"
        case "cuda":
            return "cuda"
    raise ValueError(f"there are no kernels for {device.type} devices")


@contextmanager
def using(backend: Backend, *ops: Op) -> Iterator[None]:
    """Whatever is made meanwhile is of this backend, for these operations or, without any, for all.

    For tests: Triton's interpreter runs "cuda" on tensors of the CPU.
    """
    before = dict(_chosen)
    for op in ops or get_args(Op):
        if op not in get_args(Op):
            raise ValueError(f"{op!r} is none of the operations {', '.join(get_args(Op))}")
        _chosen[op] = backend
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)
