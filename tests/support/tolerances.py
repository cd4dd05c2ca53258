"""How close float32 must come to what torch and numpy compute on a CPU."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.launch import is_interpreted

_ROUNDED: Final = 2e-6
"""Of arithmetic that rounds as a CPU's does: its own, and the interpreter's."""

_APPROXIMATED: Final = 1e-5
"""Of a compiled kernel: a GPU's powers of two (ex2.approx) and quotients (div.full) may be a few last places off."""


def float32_tolerance(device: torch.device) -> float:
    """Relative and absolute, for operations on that device; looser only where a GPU runs what was compiled."""
    return _APPROXIMATED if device.type == "cuda" and not is_interpreted() else _ROUNDED
