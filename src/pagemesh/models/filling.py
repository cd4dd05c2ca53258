"""How a checkpoint's tensors get into parameters: on the host, or on a device that an engine brings."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import torch

from pagemesh.models.architectures.architecture import Convert


class WeightWriter(Protocol):
    """Allocates parameters where the model runs, and fills them."""

    @property
    def device(self) -> torch.device:
        """Where the parameters come to lie."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Whatever is made of parameters is made meanwhile."""
        ...

    def write(self, place: torch.Tensor, tensor: torch.Tensor, convert: Convert | None) -> None:
        """Copy a tensor of a file, converted, into its place in a parameter."""
        ...

    def is_finite(self, place: torch.Tensor) -> bool | torch.Tensor:
        """Whether all values are finite.

        On a device that nobody should wait for, a bool tensor there; it may then say False of values that
        are finite but very large.
        """
        ...


class HostWeightWriter:
    """Parameters in the host's memory."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def computing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, place: torch.Tensor, tensor: torch.Tensor, convert: Convert | None) -> None:
        place.copy_(tensor if convert is None else convert(tensor))

    def is_finite(self, place: torch.Tensor) -> bool:
        """See `WeightWriter`. A sum over what was just copied: about 0.1 s for each GB."""
        # Any NaN or infinity makes the sum one. Finite values may, too, hence the second look.
        # In the tensor's own type it is the fastest look at all values that torch has on a CPU.
        return bool(place.sum().isfinite()) or bool(place.isfinite().all())


HOST: Final = HostWeightWriter()
