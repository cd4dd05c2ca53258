"""RMSNorm of hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.rms_norm import make_rms_norm
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Alone and with a residual."""
    for size in (4096, 8192):
        norm = make_rms_norm(meta(size, dtype=torch.float32), 1e-6)
        rows = meta(8, size)
        yield Case(f"of {size}", partial(norm, rows))
        yield Case(f"of {size}, added", partial(norm.add_to, rows, rows))
