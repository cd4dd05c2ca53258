"""A model's parameters: read from a checkpoint one by one, written to where the model runs.

Their names are those of `DecoderSpec.parameter_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, NamedTuple, Protocol

import torch

from pagemesh.config import KvCacheDtype
from pagemesh.errors import ConfigError
from pagemesh.kernels.arithmetic import arithmetic_of
from pagemesh.kernels.linear import Dense, Linear, Weight, make_linear
from pagemesh.kernels.linear.weight import Plain, put_together
from pagemesh.kernels.rms_norm import make_rms_norm
from pagemesh.models.architectures.architecture import Convert, Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.choices import choose_kv_dtype
from pagemesh.models.norms import LayerNorm, Norm
from pagemesh.models.quantization.interface import PackedPart
from pagemesh.models.quantization.parts import NONE_PACKED, Packings
from pagemesh.models.spec import NormSpec


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


class Parameters(Protocol):
    """Where parameters come from. They are read one by one, so that packing one frees its original."""

    @property
    def device(self) -> torch.device:
        """Where they come to lie, and with them all that a model has besides."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A parameter of its own for the caller."""
        ...

    def get(self, name: str) -> torch.Tensor | None:
        """The same for a parameter that not every model has."""
        ...

    def weight(self, name: str) -> Weight:
        """A parameter that rows are multiplied with, as the checkpoint has it."""
        ...


class ParameterScope:
    """Parameters whose names begin alike."""

    def __init__(self, parameters: Parameters, prefix: str) -> None:
        self._parameters = parameters
        self._prefix = prefix

    @property
    def device(self) -> torch.device:
        return self._parameters.device

    def read(self, name: str) -> torch.Tensor:
        return self._parameters.read(self._prefix + name)

    def get(self, name: str) -> torch.Tensor | None:
        return self._parameters.get(self._prefix + name)

    def weight(self, name: str) -> Weight:
        return self._parameters.weight(self._prefix + name)

    def linear(self, name: str) -> Linear:
        """A projection, with its bias if it has one."""
        return make_linear(self.weight(f"{name}.weight"), self.get(f"{name}.bias"))

    def norm(self, spec: NormSpec, name: str, dtype: torch.dtype) -> Norm:
        """One of the model's norms; `dtype` is the type of what it norms."""
        weight = self.read(f"{name}.weight")
        if spec.kind == "rms":
            return make_rms_norm(weight, spec.eps)
        bias = self.read(f"{name}.bias").to(dtype) if spec.bias else None
        return LayerNorm(weight.to(dtype), bias, spec.eps)


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
        packings: Packings = NONE_PACKED,
    ) -> None:
        """`shapes` are those of `DecoderSpec.parameter_shapes`, which the sources fill together.

        The parameters come to lie where the writer has them.
        """
        self._writer = writer
        self._packings = packings
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
            self._note(source, self._writer.is_finite(place))
        return parameter

    def check(self) -> None:
        """Raise the ConfigError that `read` left open; waits for the device. After the last parameter."""
        if not self._unsure:
            return
        found = torch.stack([finite for _, finite in self._unsure]).tolist()
        for (source, _), finite in zip(self._unsure, found, strict=True):
            if not finite:
                self._look_again(source)
        self._unsure.clear()

    def get(self, name: str) -> torch.Tensor | None:
        """The same for a parameter that not every model has."""
        return self.read(name) if name in self._sources else None

    def weight(self, name: str) -> Weight:
        """See `Parameters`; raises what `read` does."""
        sources = self._sources[name]
        if not any(source.tensor in self._packings for source in sources):
            return Dense(self.read(name))
        return put_together([(source.place, self._part(source)) for source in sources])

    def _part(self, source: Source) -> Plain:
        """One source of a weight that is quantised in part or in whole."""
        if source.tensor in self._packings:
            weight = self._packings.make(source, self._bring, self._dtype)
            finite = weight.bound() <= torch.finfo(self._dtype).max
            self._note(source, bool(finite) if self._writer is HOST else finite)
            return weight
        shape = torch.empty(self._shapes[source.parameter], device="meta")[source.place].shape
        place = torch.empty(shape, dtype=self._dtype, device=self.device)
        self._writer.write(place, self._checkpoint.read(source.tensor), source.convert)
        self._note(source, self._writer.is_finite(place))
        return Dense(place)

    def _bring(self, part: PackedPart) -> torch.Tensor:
        """One tensor of the checkpoint, in its own type."""
        read = self._checkpoint.read_blocks if part.is_blocks else self._checkpoint.read
        tensor = read(part.tensor)
        if part.is_only_read and self._writer is HOST:
            return tensor
        brought = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        self._writer.write(brought, tensor, None)
        return brought

    def _note(self, source: Source, finite: bool | torch.Tensor) -> None:
        """Look at a source again whose values may not be finite: now, or, on a device that works beside the host, in
        `check`."""
        if isinstance(finite, torch.Tensor):
            self._unsure.append((source, finite))
        elif not finite:
            self._look_again(source)

    def _look_again(self, source: Source) -> None:
        if source.tensor in self._packings:
            name = self._packings.first_tensor(source)
            weight = self._packings.make(source, self._bring, torch.float32)
            values = weight.dense()
            if not values.to(self._dtype).isfinite().all():
                raise self._not_finite(name, values)
            # Kernels may multiply scales with zero points before they add codes times scales.
            if not weight.bound().isfinite():
                raise ConfigError(
                    f"{self._checkpoint.entries[name].path} has the tensor {name}, of a matrix with scales whose products"
                    " with codes float32 cannot hold"
                )
            return
        tensor = self._checkpoint.read(source.tensor)
        converted = tensor if source.convert is None else source.convert(tensor)
        dtype = torch.float32 if _is_float32(source.parameter) else self._dtype
        if not converted.to(dtype).isfinite().all():
            raise self._not_finite(source.tensor, tensor)

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


class ModelTarget(NamedTuple):
    """What a loader needs to know of the device."""

    writer: WeightWriter
    kv_cache_dtype: KvCacheDtype

    def kv_dtype(self, dtype: str, *, causal: bool) -> str:
        """Type of the KV blocks of a model that runs in `dtype`, by its name in torch.

        ConfigError for one that the device, or an encoder, cannot have.
        """
        kind: Literal["cpu", "cuda"] = "cpu" if self.writer is HOST else "cuda"
        return choose_kv_dtype(self.kv_cache_dtype, dtype, kind, causal=causal)

    def arithmetic(self, dtype: torch.dtype) -> str:
        """Class of the arithmetic that a model of pagemesh's own has there, whose weights are of this type."""
        return arithmetic_of(self.writer.device, dtype)


ON_HOST: Final = ModelTarget(HOST, "auto")
