"""From a checkpoint's tensors to the decoder's parameters, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from pagemesh.errors import ConfigError
from pagemesh.models.architectures.architecture import Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.filling import HOST, WeightWriter


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
        writer: WeightWriter = HOST,
    ) -> None:
        """`shapes` are those of `DecoderSpec.parameter_shapes`, which the sources fill together.

        The parameters come to lie where the writer has them.
        """
        self._writer = writer
        self._unsure: list[tuple[Source, torch.Tensor]] = []
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._dtype = dtype
        self._sources: dict[str, list[Source]] = {}
        for source in sources:
            self._sources.setdefault(source.parameter, []).append(source)

    @property
    def device(self) -> torch.device:
        return self._writer.device

    def read(self, name: str) -> torch.Tensor:
        """A parameter, copied out of the files.

        Raises ConfigError for a tensor with a value that is not finite, or that the type cannot hold:
        here, or, on a device that works beside the host, in `check`.
        """
        dtype = torch.float32 if _is_float32(name) else self._dtype
        parameter = torch.empty(self._shapes[name], dtype=dtype, device=self.device)
        for source in self._sources[name]:
            place = parameter[source.place]
            tensor = self._checkpoint.read(source.tensor)
            self._writer.write(place, tensor, source.convert)
            finite = self._writer.is_finite(place)
            if isinstance(finite, torch.Tensor):
                self._unsure.append((source, finite))
            elif not finite:
                raise self._not_finite(source.tensor, tensor)
        return parameter

    def check(self) -> None:
        """Raise the ConfigError that `read` left open; waits for the device. After the last parameter."""
        if not self._unsure:
            return
        found = torch.stack([finite for _, finite in self._unsure]).tolist()
        for (source, _), finite in zip(self._unsure, found, strict=True):
            if not finite:
                tensor = self._checkpoint.read(source.tensor)
                converted = tensor if source.convert is None else source.convert(tensor)
                dtype = torch.float32 if _is_float32(source.parameter) else self._dtype
                if not converted.to(dtype).isfinite().all():
                    raise self._not_finite(source.tensor, tensor)
        self._unsure.clear()

    def get(self, name: str) -> torch.Tensor | None:
        """The same for a parameter that not every model has."""
        return self.read(name) if name in self._sources else None

    def _not_finite(self, name: str, tensor: torch.Tensor) -> ConfigError:
        what = f"{self._checkpoint.entries[name].path} has the tensor {name} with values that"
        if tensor.isfinite().all():
            type_name = str(self._dtype).removeprefix("torch.")
            return ConfigError(f"{what} {type_name} cannot hold: choose another --dtype")
        return ConfigError(f"{what} are NaN or infinite")


def _is_float32(parameter: str) -> bool:
    """Whether a parameter is applied in float32, where its own type would round it."""
    part = parameter.removesuffix(".weight").removesuffix(".bias")
    return part.endswith(("norm", "sinks"))
