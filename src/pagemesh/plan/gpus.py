"""What GPUs have, as their makers state it, for plans of hardware that is not there."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

GpuName = Literal[
    "a100-40gb", "a100-80gb", "b200", "h100", "h200", "l4", "l40s", "rtx-3090", "rtx-4090"
]


class Gpu(NamedTuple):
    """One kind."""

    memory: float
    """GiB that CUDA says it has: less than is printed on it."""
    tflops: float
    """Of dense products of 16-bit numbers; data sheets often state twice that, with sparsity."""
    bandwidth: float
    """GB/s of its memory."""
    source: str
    """Where the last two stand."""


GPUS: Final[dict[GpuName, Gpu]] = {
    "a100-40gb": Gpu(39.4, 312, 1555, "NVIDIA A100 data sheet, SXM 40 GB"),
    "a100-80gb": Gpu(79.1, 312, 2039, "NVIDIA A100 data sheet, SXM 80 GB"),
    "b200": Gpu(178.0, 2250, 8000, "NVIDIA DGX B200 data sheet, an eighth"),
    "h100": Gpu(79.1, 989, 3350, "NVIDIA H100 data sheet, SXM"),
    "h200": Gpu(139.8, 989, 4800, "NVIDIA H200 data sheet, SXM"),
    "l4": Gpu(22.0, 121, 300, "NVIDIA L4 data sheet"),
    "l40s": Gpu(44.4, 362, 864, "NVIDIA L40S data sheet"),
    "rtx-3090": Gpu(23.6, 71, 936, "NVIDIA Ampere GA102 whitepaper, sums in float32"),
    "rtx-4090": Gpu(23.6, 165, 1008, "NVIDIA Ada whitepaper, sums in float32"),
}
