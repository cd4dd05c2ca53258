"""The name of the arithmetic that a worker computes with: equal names mean equal bits.

Two workers whose sums are added in another order, or with other roundings, give answers that differ in
their last bits, and sooner or later in a token.
"""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa

_CUDA_KERNELS: Final = 4
"""Counted up when kernels give other bits than those of the release before."""


def arithmetic_of(device: torch.device, dtype: torch.dtype) -> str:
    """Of a model whose weights are of this type, on this device of this process.

    On CPUs the same instructions in the same order give the same bits on every make of processor, and
    only bfloat16 has instructions of its own. On GPUs tiles follow the kind of multiprocessor, and what
    becomes of a kernel the compiler.
    """
    name = str(dtype).removeprefix("torch.")
    if device.type == "cuda":
        import triton

        major, minor = torch.cuda.get_device_capability(device)
        release = ".".join(triton.__version__.split(".")[:2])
        return f"cuda{_CUDA_KERNELS}-sm{major}{minor}-triton{release}-{name}"
    isa = current_isa()
    if dtype == torch.bfloat16:
        if isa == CpuIsa.AMX:
            return "cpu-amx-bfloat16"
        if isa == CpuIsa.NEON_BF16:
            return "cpu-bfdot-bfloat16"
        if isa.has_pair_dots:
            return "cpu-dot-bfloat16"
    return f"cpu-fma-{name}"
