"""compressed-tensors, as LLM Compressor writes it: schemes by the names or classes of modules, and a list to ignore.

`pack-quantized`: `weight_packed` int32 [out, in · bits / 32], with the codes of several inputs in a word, `weight_scale`
[out, groups], for schemes that are not symmetric `weight_zero_point` int32 [out · bits / 32, groups], and with act-order
`weight_g_idx`. `int-quantized`: `weight` int8 and `weight_zero_point` int8; where activations are integers of 8 bits as
well (W8A8), the scale of each row of them is found while it is computed, or is `input_scale`. `float-quantized`: see
`fp8`, with scales for activations as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import ChannelInt8, GroupInt
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization import name_patterns
from pagemesh.models.quantization.floats import Fp8Rows, fp8_packing, read_block
from pagemesh.models.quantization.gptq import group_checks, input_groups
from pagemesh.models.quantization.interface import (
    FLOATS,
    Entries,
    PackedPart,
    Packing,
    bytes_of_words,
    check_divides,
    check_input_scale,
    check_words,
    codes_of_words,
    input_scale_part,
    module_of,
    read_bits,
    scale_checks,
)

_FORMATS: Final = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_INT_STRATEGIES: Final = ("tensor", "channel", "group")
_STRATEGIES: Final = (*_INT_STRATEGIES, "block")
_ACT_ORDERS: Final = (*name_patterns.BY_GROUP, "weight", "static", False)
"""Of the last three groups are runs of inputs."""

_Kind: TypeAlias = Literal["packed", "int", "float", "int8 rows", "int8 rows, static"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the modules of one group are quantised."""

    targets: tuple[str, ...]
    """Names, regular expressions behind `re:` (see `name_patterns`), or `Linear`."""

    kind: _Kind
    """Of the weights; the last two of integers that rows of integers are multiplied with."""

    bits: int
    symmetric: bool
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    act_order: bool

    fp8_rows: Fp8Rows
    """What becomes of rows of activations, of weights of floats."""


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """See `Format`. A matrix that the settings name is quantised where the checkpoint has no floats of it."""

    schemes: tuple[Scheme, ...]
    ignore: tuple[str, ...]

    where: str
    """The settings' place, for messages."""

    @classmethod
    def read(cls, config: ConfigJson) -> CompressedTensors:
        """ConfigError for schemes that have no kernels."""
        sparsity = config.child("sparsity_config")
        if sparsity is not None:
            sparsity.require("format", ("dense",))
        transforms = config.child("transform_config")
        if transforms is not None:
            transforms.require("config_groups", ({},))
            for key in transforms:
                if key != "config_groups" and transforms.get(key) is not None:
                    raise transforms.bad(key, "absent: nothing else is supported")
        kv_cache = config.child("kv_cache_scheme")
        if kv_cache is not None:
            _require_fp8(kv_cache)
            kv_cache.require("strategy", ("tensor", "attn_head"))
        groups = config.child("config_groups") or ConfigJson({}, config.where)
        schemes = []
        for name in groups:
            group = groups.child(name)
            if group is not None:
                schemes.append(_read_scheme(group, config))
        ignore = name_patterns.read_patterns(config, "ignore")
        return cls(tuple(schemes), ignore, config.where)

    def find(self, tensor: str, shape: tuple[int, ...], entries: Entries) -> Packing | None:
        entry = entries.get(tensor)
        module = module_of(tensor)
        if len(shape) != 2 or (entry is not None and entry.dtype in FLOATS):
            return None
        targets = [(each.targets, each) for each in self.schemes]
        scheme = name_patterns.find_scheme((module,), targets, self.ignore, self.where)
        if scheme is None:
            return None
        if scheme.kind == "float":
            block = scheme.block
            if scheme.strategy == "group":
                assert scheme.group_size is not None
                block = (1, scheme.group_size)
            scale = f"{module}.weight_scale"
            return fp8_packing(tensor, shape, scale, block, entries, scheme.fp8_rows)
        if scheme.kind in ("int8 rows", "int8 rows, static"):
            return _int8_packing(scheme, module, shape, entries)
        return _IntPacking(scheme, module, shape, self.where).packing(entries)


def _read_scheme(group: ConfigJson, config: ConfigJson) -> Scheme:
    layout = group if group.get("format") is not None else config
    layout.require("format", _FORMATS)
    name = layout.get("format")
    weights = group.child("weights")
    if weights is None:
        raise group.bad("weights", "a JSON object: nothing else is supported")
    if group.get("output_activations") is not None:
        raise group.bad("output_activations", "null: nothing else is supported")
    activations = group.child("input_activations")
    is_float = weights.get("type") == "float"
    weights.require("type", ("int", "float"))
    weights.require("strategy", _STRATEGIES if is_float else _INT_STRATEGIES)
    weights.require("dynamic", (False,))
    weights.require("actorder", _ACT_ORDERS)
    if is_float:
        _require_fp8(weights)
        layout.require("format", ("float-quantized", "naive-quantized"))
    elif name != "pack-quantized":
        weights.require("num_bits", (8,))
        layout.require("format", ("int-quantized", "naive-quantized"))
    kind: _Kind = "float" if is_float else "packed" if name == "pack-quantized" else "int"
    if activations is not None and not is_float:
        layout.require("format", ("int-quantized", "naive-quantized"))
        kind = _int8_kind(weights, activations)
    has_groups = weights.get("strategy") == "group"
    return Scheme(
        targets=name_patterns.read_patterns(group, "targets"),
        kind=kind,
        bits=read_bits(weights, "num_bits"),
        symmetric=weights.flag("symmetric", True),
        strategy=str(weights.get("strategy") or "tensor"),
        group_size=weights.integer("group_size") if has_groups else None,
        block=_read_block(weights),
        act_order=name_patterns.has_act_order(weights),
        fp8_rows=_fp8_rows(activations) if is_float and activations is not None else "kept",
    )


def _require_fp8(numbers: ConfigJson) -> None:
    """ConfigError for other numbers than floats of 8 bits on both sides of 0."""
    if numbers.get("type") != "float":
        raise numbers.bad("type", '"float": nothing else is supported')
    numbers.require("num_bits", (8,))
    numbers.require("symmetric", (True,))


def _read_block(weights: ConfigJson) -> tuple[int, int] | None:
    if weights.get("strategy") != "block":
        return None
    block = read_block(weights, "block_structure")
    if block is None:
        raise weights.bad("block_structure", "a list of two positive integers")
    return block


def _fp8_rows(activations: ConfigJson) -> Fp8Rows:
    """Of weights that are floats of 8 bits; ConfigError for others than a kernel has."""
    _require_fp8(activations)
    activations.require("dynamic", (True, False))
    if not activations.get("dynamic"):
        _require_one_scale(activations)
        return "static"
    activations.require("strategy", ("token", "tensor", "group"))
    if activations.get("strategy") == "group":
        return activations.integer("group_size")
    # One scale for all rows of a step would be another one for each step.
    return "rows"


def _require_one_scale(activations: ConfigJson) -> None:
    """ConfigError for another number of scales of a module whose rows have the checkpoint's."""
    if activations.get("strategy") not in ("tensor", None):
        raise activations.bad("strategy", '"tensor" where dynamic is false')


def _int8_kind(weights: ConfigJson, activations: ConfigJson) -> _Kind:
    """Of integers for rows of integers; ConfigError for others than a kernel has."""
    weights.require("strategy", ("tensor", "channel"))
    weights.require("symmetric", (True,))
    activations.require("type", ("int",))
    activations.require("num_bits", (8,))
    activations.require("symmetric", (True,))
    activations.require("dynamic", (True, False))
    if activations.get("dynamic"):
        if activations.get("strategy") != "token":
            raise activations.bad("strategy", '"token" where dynamic is true')
        return "int8 rows"
    _require_one_scale(activations)
    return "int8 rows, static"


def _int8_packing(scheme: Scheme, module: str, shape: tuple[int, ...], entries: Entries) -> Packing:
    """Of one matrix of integers for rows of integers."""
    num_outputs, num_inputs = shape
    if num_inputs > ChannelInt8.most_inputs:
        raise ConfigError(
            f"{module}.weight has rows of {num_inputs} integers for activations of 8 bits, but"
            f" {ChannelInt8.most_inputs} are the most whose sums fit 32 bits"
        )
    scales = (1,) if scheme.strategy == "tensor" else (num_outputs, 1)
    parts = {
        "codes": PackedPart(f"{module}.weight", shape, ("I8",)),
        "scales": PackedPart(f"{module}.weight_scale", scales, FLOATS),
    }
    checks = scale_checks(parts["scales"])
    if scheme.kind == "int8 rows, static":
        parts["input_scale"] = input_scale_part(f"{module}.input_scale", entries)
        checks["input_scale"] = check_input_scale

    def make(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> ChannelInt8:
        given = tensors.get("input_scale")
        return ChannelInt8(
            dtype,
            tensors["codes"],
            tensors["scales"].float().expand(num_outputs, 1).contiguous(),
            None if given is None else given.float().view(1, 1),
        )

    return Packing(parts, make, checks, rounds_rows=True)


@dataclass(frozen=True, slots=True)
class _IntPacking:
    """One matrix of integers."""

    scheme: Scheme
    module: str
    shape: tuple[int, ...]
    where: str

    def packing(self, entries: Entries) -> Packing:
        num_outputs, num_inputs = self.shape
        check_divides(self._group_size, num_inputs, f"{self.module}.weight", self.where)
        num_groups = num_inputs // self._group_size
        scale = (1,) if self.scheme.strategy == "tensor" else (num_outputs, num_groups)
        parts = {"scales": PackedPart(f"{self.module}.weight_scale", scale, FLOATS)}
        zeros: tuple[tuple[int, ...], tuple[str, ...]] = (scale, ("I8",))
        if self.scheme.kind == "packed":
            per_word = 32 // self.scheme.bits
            check_words(num_inputs, per_word, "inputs", f"{self.module}.weight", self.where)
            words = (num_outputs, num_inputs // per_word)
            parts["codes"] = PackedPart(f"{self.module}.weight_packed", words, ("I32",))
            parts["shape"] = PackedPart(f"{self.module}.weight_shape", (2,), ("I64", "I32"))
            if self.scheme.strategy != "tensor":
                zeros = ((-(-num_outputs // per_word), num_groups), ("I32",))
        else:
            parts["codes"] = PackedPart(f"{self.module}.weight", (num_outputs, num_inputs), ("I8",))
        if not self.scheme.symmetric:
            parts["zeros"] = PackedPart(f"{self.module}.weight_zero_point", *zeros)
        groups = PackedPart(f"{self.module}.weight_g_idx", (num_inputs,), ("I32",))
        if self.scheme.act_order or groups.tensor in entries:
            parts["groups"] = groups
        checks = scale_checks(parts["scales"]) | group_checks(parts, num_groups)
        if "shape" in parts:
            checks["shape"] = self._check_shape
        return Packing(parts, self._make, checks)

    def _check_shape(self, shape: torch.Tensor) -> str | None:
        if shape.tolist() == list(self.shape):
            return None
        return f"with the shape {shape.tolist()}, but config.json asks for {list(self.shape)}"

    def _make(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> GroupInt:
        codes = tensors["codes"]
        num_outputs = self.shape[0]
        middle = 1 << (self.scheme.bits - 1)
        zeros = self._zeros(tensors)
        return GroupInt(
            dtype=dtype,
            codes=bytes_of_words(codes) if self.scheme.kind == "packed" else _unsigned(codes),
            scales=tensors["scales"].expand(num_outputs, -1).contiguous(),
            bits=cast(Literal[4, 8], self.scheme.bits),
            group_size=self._group_size,
            centre=middle if zeros is None else 0,
            zero_points=zeros,
            input_groups=input_groups(tensors.get("groups"), self._group_size),
        )

    def _zeros(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        zeros = tensors.get("zeros")
        if zeros is None:
            return None
        num_outputs = self.shape[0]
        if zeros.dtype == torch.int8:
            return _unsigned(zeros).expand(num_outputs, -1).contiguous()
        return codes_of_words(zeros.t(), self.scheme.bits).t()[:num_outputs].contiguous()

    @property
    def _group_size(self) -> int:
        return self.scheme.group_size or self.shape[1]


def _unsigned(codes: torch.Tensor) -> torch.Tensor:
    """int8 around 0 → uint8 around 128."""
    return codes.view(torch.uint8) ^ 0x80
