"""Bytes of the matrices that stay packed, by what config.json and the headers of a checkpoint say. No torch.

On CPUs a matrix lies in panels of 32 rows and in parts of 128 inputs, each of which begins with what its codes are
multiplied with, in lines of 64 bytes (`kernels.linear.packed_parts`). On GPUs it lies as it is read, a table of tokens
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf
from pagemesh.models.architectures.architecture import Architecture, Source
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.gguf_sources import gguf_sources
from pagemesh.models.quantization.methods import (
    Quantization,
    choose_quantization,
    read_quantization,
)
from pagemesh.models.quantization.name_patterns import codes_by_settings
from pagemesh.models.quantization.ways import (
    CHOOSING,
    QuantizationWay,
    Rounding,
    WayName,
    is_multiplied,
    may_be_packed,
)
from pagemesh.models.spec import DecoderSpec
from pagemesh.models.tensor_files import TensorEntry, read_headers
from pagemesh.sizing.plan import weight_bytes

_PANEL_ROWS: Final = 32
_PART_INPUTS: Final = 128
_STEP_INPUTS: Final = 32
_LINE_BYTES: Final = 64

_BESIDE_CODES: Final = 16
"""A checkpoint's packed matrices take a sixteenth more in memory than in its files: what lies beside codes fills lines
there. An estimate: from nothing to three sixteenths, as groups are long or short."""


_PARTS: Final[Mapping[WayName, tuple[int, int, int]]] = {
    "fp8": (8, 2, 1),
    "int8": (8, 2, 1),
    "int4": (4, 2, 2),
}
"""Bits of a code, bytes of a number beside codes, and how many of these a group has."""

_EXPERTS_ENDINGS: Final = ("_blocks", "_scales")
_OWN_PARTS: Final = (
    *("weight", "qweight", "qzeros", "scales", "g_idx", "SCB", "_weight", "input_scale"),
    *("activation_scale",),
)
"""How the parts of names begin that say which of a matrix's tensors it is."""


class PackedWeights(NamedTuple):
    """What stays packed of a model."""

    name: str | None = None
    """The way or the format; None of a dense model."""

    num_bytes: Mapping[str, int] = {}
    """By the parameters of `DecoderSpec.parameter_shapes`, whole ones of all devices."""

    left_dense: tuple[str, ...] | None = None
    """Of what is quantised while it is loaded, the matrices that are not, as `QuantizationWay.left_out` names them."""


def packed_weights(
    folder: Path,
    settings: ConfigJson,
    architecture: Architecture,
    spec: DecoderSpec,
    asked: str | None,
    kind: Literal["cpu", "cuda"],
) -> PackedWeights:
    """Of a folder, whose config.json the settings are, for `asked`, which is --quantization's. ConfigError where the
    model cannot be quantised so."""
    chosen = choose_quantization(settings, asked)
    if chosen is None:
        return PackedWeights()
    if isinstance(chosen, QuantizationWay):
        left = tuple(chosen.left_out(spec))
        return PackedWeights(chosen.name, _of_way(chosen, spec, kind), left)
    name = chosen.method
    try:
        entries, _ = read_headers(folder)
    except ConfigError:
        # A plan needs no weights.
        return PackedWeights(name, _by_settings(chosen, architecture, spec, kind))
    is_file = is_gguf(folder)
    sources = (
        gguf_sources(architecture, spec, entries)
        if is_file
        else architecture.named_sources(spec, entries.keys())
    )
    if kind == "cpu" and _has_order(chosen, entries):
        return PackedWeights(name)
    return PackedWeights(name, _by_headers(sources, entries))


def file_bytes(
    folder: Path, settings: ConfigJson, architecture: Architecture, spec: DecoderSpec, dtype: str
) -> int:
    """Of the tensors in a checkpoint's files; without these, of what config.json says of them, in `dtype` where they
    are not quantised. What is quantised while it is loaded is dense there."""
    found = stored_bytes(folder)
    if found is not None:
        return found
    written = read_quantization(settings)
    # A file has its codes whether a CPU keeps them or not.
    packed = {} if written is None else _by_settings(written, architecture, spec, "cuda")
    return weight_bytes(spec, dtype, packed=packed)


def stored_bytes(folder: Path) -> int | None:
    """As the headers of a folder, or of a GGUF file, have them; None where there are none."""
    try:
        entries, _ = read_headers(folder)
    except ConfigError:
        return None
    return sum(entry.end - entry.begin for entry in entries.values())


def panel_bytes(shape: tuple[int, ...], to: Rounding) -> int:
    """In panels, of a matrix [out, in], or a stack of them, that is rounded while it is loaded."""
    *leading, num_rows, num_inputs = shape
    bits, item_bytes, num_tables = _PARTS[to.kind]
    # A scale of a row is in each of its parts.
    is_row = to.group_size >= min(num_inputs, _PART_INPUTS)
    groups = 1 if is_row else _PART_INPUTS // to.group_size
    table_bytes = _up(groups * _PANEL_ROWS * item_bytes, _LINE_BYTES)
    heads = -(-num_inputs // _PART_INPUTS) * num_tables * table_bytes
    codes = _up(num_inputs, _STEP_INPUTS) * _PANEL_ROWS * bits // 8
    return prod(leading) * -(-num_rows // _PANEL_ROWS) * (heads + codes)


def row_bytes(shape: tuple[int, ...], to: Rounding) -> int:
    """The same row by row, as on a GPU."""
    *leading, num_inputs = shape
    bits, item_bytes, num_tables = _PARTS[to.kind]
    groups = -(-num_inputs // to.group_size)
    return prod(leading) * (num_inputs * bits // 8 + groups * item_bytes * num_tables)


def _of_way(
    way: QuantizationWay, spec: DecoderSpec, kind: Literal["cpu", "cuda"]
) -> Mapping[str, int]:
    shapes, of_one = spec.parameter_shapes(), panel_bytes if kind == "cpu" else row_bytes
    roundings = way.roundings(spec)
    return {name: of_one(shapes[name], to) for name, to in roundings.items()}


def _by_headers(sources: Iterable[Source], entries: Mapping[str, TensorEntry]) -> Mapping[str, int]:
    """What is there instead of floats of a parameter's sources."""
    by_module: dict[str, int] = {}
    for name, entry in entries.items():
        module = _module_of(name)
        by_module[module] = by_module.get(module, 0) + entry.end - entry.begin
    found: dict[str, int] = {}
    dense: set[str] = set()
    for source in sources:
        if not may_be_packed(source.parameter, source.shape):
            continue
        own = entries.get(source.tensor)
        # Floats have two bytes at least.
        if own is not None and own.end - own.begin >= 2 * prod(source.shape):
            dense.add(source.parameter)
            continue
        num_bytes = by_module.get(_module_of(source.tensor), 0)
        num_bytes += num_bytes // _BESIDE_CODES
        found[source.parameter] = found.get(source.parameter, 0) + num_bytes
    return {name: size for name, size in found.items() if name not in dense}


def _module_of(tensor: str) -> str:
    """What the tensors in a matrix's place have in common, of `q_proj.weight`, `q_proj.qweight` or
    `q_proj.weight.absmax`, and of `experts.down_proj_blocks`."""
    for ending in _EXPERTS_ENDINGS:
        if tensor.endswith(ending):
            return tensor.removesuffix(ending)
    parts = tensor.split(".")
    cut = next((n for n, part in enumerate(parts) if part.startswith(_OWN_PARTS)), len(parts))
    return ".".join(parts[:cut])


def _has_order(chosen: Quantization, entries: Mapping[str, TensorEntry]) -> bool:
    """Whether groups are no runs of inputs: CPUs keep such weights dense."""
    if chosen.config.get("desc_act") is True:
        return True
    return any(name.endswith(".weight_g_idx") for name in entries)


def _by_settings(
    chosen: Quantization,
    architecture: Architecture,
    spec: DecoderSpec,
    kind: Literal["cpu", "cuda"],
) -> Mapping[str, int]:
    """Without weights to look at: matrices of layers in the bits that the settings give each, experts alone of MXFP4."""
    codes_of = codes_by_settings(chosen)
    found: dict[str, int] = {}
    rules: dict[str, str] = {}
    dense: set[str] = set()
    for source in architecture.sources(spec):
        parameter, shape = source.parameter, source.shape
        if not parameter.startswith("layers.") or not is_multiplied(parameter, shape):
            continue
        codes = codes_of(tuple(map(_module_of, architecture.names_of(source.tensor))))
        is_stack = len(shape) > 2
        if (
            codes is None
            or parameter.endswith(CHOOSING)
            or is_stack != (chosen.method == "mxfp4")
            or (kind == "cpu" and codes.has_order)
            # Only queries, keys and values may be of several kinds.
            or (rules.setdefault(parameter, codes.rule) != codes.rule and ".qkv." not in parameter)
        ):
            dense.add(parameter)
            continue
        # With a scale of 16 bits to 32 inputs.
        found[parameter] = found.get(parameter, 0) + prod(shape) * (2 * codes.bits + 1) // 16
    return {name: size for name, size in found.items() if name not in dense}


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
