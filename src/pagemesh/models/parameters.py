"""A model's parameters by the names of `DecoderSpec.parameter_shapes`."""

from __future__ import annotations

from typing import Protocol

import torch

from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.models.norms import LayerNorm, Norm, RmsNorm
from pagemesh.models.spec import NormSpec


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

    def linear(self, name: str) -> Linear:
        """A projection, with its bias if it has one."""
        return make_linear(self.read(f"{name}.weight"), self.get(f"{name}.bias"))

    def norm(self, spec: NormSpec, name: str, dtype: torch.dtype) -> Norm:
        """One of the model's norms; `dtype` is the type of what it norms."""
        weight = self.read(f"{name}.weight")
        if spec.kind == "rms":
            return RmsNorm(weight, spec.eps)
        bias = self.read(f"{name}.bias").to(dtype) if spec.bias else None
        return LayerNorm(weight.to(dtype), bias, spec.eps)
