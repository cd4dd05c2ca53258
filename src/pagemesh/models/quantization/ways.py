"""Ways in which `--quantization` quantises a dense checkpoint while it is loaded: what becomes of which parameter. No
torch.

`int8` is whole numbers with a scale to 128 inputs: as CPUs keep weights in parts of so many, that costs them no more than
a scale to a row, and errors are 12 % smaller. `fp8` is e4m3 with a scale to 32 inputs, as MXFP8, but one of several
that are tried, which fits few numbers better than many. `int4` has a scale and a minimum to 32 inputs. Both leave the
output head, by which each token is chosen, to `int8`, and a table of tokens to which the head is tied is quantised as a
head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pagemesh.models.spec import DecoderSpec

RULE: Final = 3
"""Version of how numbers are rounded. Another one makes other weights of a checkpoint, and so another model of it."""

WayName = Literal["fp8", "int8", "int4"]

WAY_NAMES: Final[tuple[WayName, ...]] = ("fp8", "int8", "int4")

_FP8_GROUP: Final = 32

INT8_GROUPS: Final = (128, 64, 32, 16)
"""Inputs that share a scale: the first that divides a row; else the row."""

_INT4_GROUP: Final = 32

CHOOSING: Final = ("router.weight", "shared_gate.weight")
"""Few numbers, by which experts are chosen or weighted."""


class Rounding(NamedTuple):
    """What becomes of one matrix."""

    kind: WayName
    group_size: int  # inputs that share a scale; of fp8 the last group has what is left


class QuantizationWay(NamedTuple):
    """One of them."""

    name: WayName

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a fingerprint has to know."""
        return {"quantized_while_loading": [self.name, RULE]}

    def roundings(self, spec: DecoderSpec) -> Mapping[str, Rounding]:
        """Of the parameters of a model that do not stay as they are."""
        is_tied = spec.has_head and spec.tie_word_embeddings
        found = {
            name: self.rounding("lm_head" if is_tied and name == "embed" else name, shape)
            for name, shape in spec.parameter_shapes().items()
        }
        return {name: to for name, to in found.items() if to is not None}

    def rounding(self, parameter: str, shape: tuple[int, ...]) -> Rounding | None:
        """Of a parameter of `DecoderSpec.parameter_shapes`; None for one that stays as it is."""
        if not is_multiplied(parameter, shape) or parameter.endswith(CHOOSING):
            return None
        num_inputs = shape[-1]
        if self.name == "int8" or parameter == "lm_head":
            sizes = (size for size in INT8_GROUPS if num_inputs % size == 0)
            return Rounding("int8", next(sizes, num_inputs))
        if self.name == "fp8":
            return Rounding("fp8", _FP8_GROUP)
        return None if num_inputs % _INT4_GROUP else Rounding("int4", _INT4_GROUP)

    def left_out(self, spec: DecoderSpec) -> list[str]:
        """Matrices that stay as they are, by names that those of all layers share, each with the reason."""
        rounded = self.roundings(spec)
        reasons = {
            _of_any_layer(name): self.why_dense(name, shape)
            for name, shape in spec.parameter_shapes().items()
            if len(shape) > 1 and name not in rounded and not name.endswith(".bias")
        }
        return [f"{name} ({reason})" for name, reason in reasons.items()]

    def why_dense(self, parameter: str, shape: tuple[int, ...]) -> str:
        """The reason for which a matrix has no rounding."""
        if not is_multiplied(parameter, shape):
            return "looked up"
        if parameter.endswith(CHOOSING):
            return "chooses experts"
        return f"{shape[-1]} inputs are no groups of {_INT4_GROUP}"


def is_multiplied(parameter: str, shape: tuple[int, ...]) -> bool:
    """Whether rows are multiplied with it; tables are looked up, norms are applied to each number."""
    is_weight = parameter == "lm_head" or parameter.endswith(".weight")
    return is_weight and len(shape) > 1


def may_be_packed(parameter: str, shape: tuple[int, ...]) -> bool:
    """Whether a checkpoint's codes of it may stay as they are."""
    return parameter == "embed" or is_multiplied(parameter, shape)


def _of_any_layer(parameter: str) -> str:
    """`layers.*.router.weight`."""
    first, *others = parameter.split(".")
    return ".".join([first, "*", *others[1:]]) if first == "layers" else parameter
