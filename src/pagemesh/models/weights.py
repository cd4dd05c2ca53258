"""From a checkpoint's tensors to the decoder's parameters, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from pagemesh.errors import ConfigError
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.sources import Source


class CheckpointParameters:
    """`Parameters` of a checkpoint, read when they are asked for: whoever asks owns the copy.

    Norms and sinks come in float32, all else in the type that the model runs in.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        sources: Iterable[Source],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
    ) -> None:
        """`shapes` are those of `DecoderSpec.parameter_shapes`, which the sources fill together."""
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._dtype = dtype
        self._sources: dict[str, list[Source]] = {}
        for source in sources:
            self._sources.setdefault(source.parameter, []).append(source)

    @property
    def device(self) -> torch.device:
        """See `Parameters`."""
        return torch.device("cpu")

    def read(self, name: str) -> torch.Tensor:
        """A parameter, copied out of the files.

        Raises ConfigError for a tensor with a value that is not finite, or that the type cannot hold.
        The check is a sum over what was just copied: about 0.1 s for each GB.
        """
        dtype = torch.float32 if _is_small(name) else self._dtype
        parameter = torch.empty(self._shapes[name], dtype=dtype)
        for source in self._sources[name]:
            place = parameter[source.place]
            tensor = self._checkpoint.read(source.tensor)
            place.copy_(tensor if source.convert is None else source.convert(tensor))
            if not _is_finite(place):
                raise self._not_finite(source.tensor, tensor)
        return parameter

    def get(self, name: str) -> torch.Tensor | None:
        """The same for a parameter that not every model has."""
        return self.read(name) if name in self._sources else None

    def _not_finite(self, name: str, tensor: torch.Tensor) -> ConfigError:
        what = f"{self._checkpoint.entries[name].path} has the tensor {name} with values that"
        if tensor.isfinite().all():
            type_name = str(self._dtype).removeprefix("torch.")
            return ConfigError(f"{what} {type_name} cannot hold: choose another --dtype")
        return ConfigError(f"{what} are NaN or infinite")


def _is_small(parameter: str) -> bool:
    """Whether a parameter is applied in float32, where its own type would round it."""
    part = parameter.removesuffix(".weight").removesuffix(".bias")
    return part.endswith(("norm", "sinks"))


def _is_finite(tensor: torch.Tensor) -> bool:
    # Any NaN or infinity makes the sum one. Finite values may, too, hence the second look.
    # In the tensor's own type it is the fastest look at all values that torch has on a CPU.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
