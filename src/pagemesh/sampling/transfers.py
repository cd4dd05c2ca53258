"""How what is asked of a device gets there, and what it gives comes back. No one waits but in `read`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt
import torch


class Download(Protocol):
    """Tensors on their way to the host."""

    def read(self) -> list[torch.Tensor]:
        """Wait for them. Once."""
        ...


class Transfers(Protocol):
    """Copies behind what the device was asked before, on the stream that computes."""

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """The arrays on the device, as they are now, by one copy."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Have tensors copied to the host, as they are when the device gets there."""
        ...
