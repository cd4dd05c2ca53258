"""RMSNorm of hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Alone, with a residual, and for a product that scales."""
    for size in (4096, 8192):
        norm = CudaRmsNorm(meta(size, dtype=torch.float32), 1e-6)
        rows = meta(8, size)
        yield Case(f"of {size}", partial(norm, rows))
        yield Case(f"of {size}, added", partial(norm.add_to, rows, rows))
        yield Case(f"of {size}, weighed", partial(norm.weigh, rows, keeps_runs=True))
        yield Case(f"of {size}, weighed, with scales", partial(norm.weigh, rows, keeps_runs=False))
