"""Packed weights in a processor's own order: panels of 32 columns, in parts of 128 inputs.

A part begins with what its codes are multiplied with: rows of 32, one for each group of inputs. Behind that the codes
lie in blocks of 1 KiB. Where they become vectors of several columns, these are 16 lines of 64 bytes, each for the 16
lanes of several vectors, which shifts alone bring into their lanes. Where they become rows of a column's inputs, they
are 32 bytes for each column, of an input each, or of two of 4 bits that are 32 inputs apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import torch
from torch.nn import functional

from pagemesh.kernels.jit.cpu_isa import has_byte_permutes
from pagemesh.kernels.jit.emit import LANES
from pagemesh.kernels.linear.packed import Codebook, GroupInt, Packed, ScaledFp8, unpack_halves
from pagemesh.kernels.linear.panel_packing import (
    COLUMN_LINE_BYTES,
    CodeLines,
    TableRows,
    pack_lines,
    pack_table,
)
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.packed_weights import place_made

PART_INPUTS: Final = 128
"""16 KiB in float32, half of a first-level cache."""

STEP_INPUTS: Final = 32
"""Inputs are filled up to a multiple of these."""

LINE_BYTES: Final = 64
BLOCK_BYTES: Final = COLUMNS * STEP_INPUTS
"""Of codes of all columns: of a step's inputs, or of two steps' of 4 bits."""

_PIECE_CODES: Final = 1 << 21
"""That are packed at once: beside what stays a weight takes the memory of some of these."""

LIFT: Final = 1 << 15
"""The float32 of it and a code of 8 bits together has the code for its second lowest byte."""

_ZEROS: Final = 0x88
"""Two codes of 4 bits that stand for 0 if that is in their middle."""
_MAX_SHARED_SCALE: Final = 2.0**100

_FLOAT_DIGITS: Final = 24
_MAX_LIFTED_SCALE: Final = 2.0**111
_MIN_GROUP: Final = 16
_NUMBER_DIGITS: Final = {
    torch.float32: 24,
    torch.float16: 11,
    torch.bfloat16: 8,
    torch.uint8: 8,
    torch.int8: 8,
    torch.float8_e8m0fnu: 1,
}
"""Binary ones of a number, of the types that rows may have."""

_RAW: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Whole numbers of as many bytes."""

Order = Literal["singles", "pairs", "columns"]
"""How a part's numbers are to lie when they are unpacked: float32 of all columns, input by input; or bfloat16 of all
columns with pairs of inputs, pair by pair; or bfloat16 of a step's inputs, column by column."""


class Rows(NamedTuple):
    """Of a part, what is no codes."""

    dtype: str
    """By torch's name."""

    offset: int
    """Of the first row in a part, in bytes."""

    row_bytes: int
    number: int
    """One for each group of the part, or one in all."""

    in_pairs: bool
    """Whether beside each column of the first half lies that of the second: two instructions then make floats of both."""


class PackedForm(NamedTuple):
    """What code is compiled for."""

    order: Order
    dtype: str
    """What the numbers are rounded to, by torch's name; bfloat16, but for singles."""

    bits: Literal[4, 8]
    group_inputs: int
    """Inputs of a part that share a scale."""

    scales: Rows
    scale_units: Rows | None
    zero_points: Rows | None
    minimums: Rows | None
    minimum_units: Rows | None

    codes_offset: int
    """Of the first line in a part, in bytes."""

    centre: int
    is_exact: bool
    """Whether a scale times a code, or times a zero point, always fits a float32."""

    is_liftable: bool
    """Whether a scale times the sum of LIFT and a code of 8 bits, or the centre, always fits a float32."""

    shares_digits: bool
    """Whether codes of 4 bits stand for a scale times -8 to 7, groups are a step's inputs, and what a scale is multiplied
    with surely stays within bfloat16's exponents; the order is "columns"."""

    turns_codes: bool
    """Whether bytes with two codes of 4 bits are turned left by a bit, which makes places of bytes of them."""

    decode: Literal["int", "e4m3"] | tuple[float, ...]
    """What a code stands for; or the table in which it is a place."""

    @property
    def line_inputs(self) -> int:
        """Inputs of a line."""
        return LINE_BYTES * 8 // self.bits // COLUMNS

    @property
    def part_bytes(self) -> int:
        """Of a part that has all its inputs."""
        return self.codes_offset + PART_INPUTS // self.line_inputs * LINE_BYTES


class FormedRows(NamedTuple):
    """A weight, and how it becomes panels."""

    weight: Packed
    """[out, in]."""

    form: PackedForm


def form_of(weight: Packed, order: Order) -> PackedForm | None:
    """How a weight is packed; None for one that is to be dense."""
    group_size, num_inputs = _group_size(weight), weight.shape[-1]
    is_row = group_size >= num_inputs
    group = PART_INPUTS if is_row else min(group_size, PART_INPUTS)
    if group < _MIN_GROUP or PART_INPUTS % group or (group_size % group and not is_row):
        return None
    if isinstance(weight, GroupInt) and weight.input_groups is not None:
        return None
    places: dict[str, Rows] = {}
    end = 0
    for name, table in tables_of(weight).items():
        is_unit = name.endswith("units")
        if table.dtype not in _NUMBER_DIGITS or (is_unit and _run(weight, name) % PART_INPUTS):
            return None
        number = 1 if is_unit else PART_INPUTS // group
        row_bytes = COLUMNS * table.dtype.itemsize
        dtype = str(table.dtype).removeprefix("torch.")
        in_pairs = order == "columns" and dtype == "bfloat16"
        places[name] = Rows(dtype, end, row_bytes, number, in_pairs)
        end += -(-number * row_bytes // LINE_BYTES) * LINE_BYTES
    by_column = order == "columns"
    shares_digits = by_column and group == STEP_INPUTS and _shares_digits(weight)
    turns_codes = by_column and group <= STEP_INPUTS and not shares_digits and _bits(weight) == 4
    return PackedForm(
        order=order,
        dtype=str(weight.dtype).removeprefix("torch."),
        bits=_bits(weight),
        group_inputs=group,
        scales=places["scales"],
        scale_units=places.get("scale_units"),
        zero_points=places.get("zero_points"),
        minimums=places.get("minimums"),
        minimum_units=places.get("minimum_units"),
        codes_offset=end,
        centre=weight.centre if isinstance(weight, GroupInt) else 0,
        is_exact=_is_exact(weight),
        is_liftable=_is_liftable(weight),
        shares_digits=shares_digits,
        turns_codes=turns_codes and has_byte_permutes(),
        decode=_decode(weight),
    )


def place_panels(formed: FormedRows, columns: torch.Tensor) -> torch.Tensor:
    """uint8 [panels, bytes] where a packed weight stays. `columns` are the rows that panels have, int64 [panels · 32];
    inputs are filled up with what gives finite numbers."""
    weight, form = formed

    def make(place: torch.Tensor) -> None:
        for name, table in tables_of(weight).items():
            # Floats of 8 bits are no numbers to code that moves them.
            raw = table.view(_RAW[table.dtype.itemsize])
            rows = _table_rows(weight, name, form)
            in_pairs = getattr(form, name).in_pairs
            pack_table(raw, _by_pairs(columns) if in_pairs else columns, rows, place)
        if form.order == "columns":
            codes = _filled(_line_codes(weight, form), COLUMN_LINE_BYTES)
            part_lines = PART_INPUTS // _line_inputs(form)
            lines = CodeLines(form.bits, form.codes_offset, part_lines, form.turns_codes)
            pack_lines(codes, columns, lines, place)
            return
        step = max(1, _PIECE_CODES // (COLUMNS * weight.shape[-1]))
        for begin in range(0, len(place), step):
            own = columns[begin * COLUMNS : (begin + step) * COLUMNS]
            _fill(place[begin : begin + step], _codes(weight.take_rows(own)), form)

    shape = (len(columns) // COLUMNS, _panel_bytes(form, weight.shape[-1]))
    return place_made(shape, torch.uint8, make)


def _table_rows(weight: Packed, name: str, form: PackedForm) -> TableRows:
    rows: Rows = getattr(form, name)
    parts_per_number = max(1, _run(weight, name) // PART_INPUTS) if rows.number == 1 else 0
    num_parts = -(-weight.shape[-1] // PART_INPUTS)
    gap = -rows.number * rows.row_bytes % LINE_BYTES
    return TableRows(rows.offset, rows.number, parts_per_number, gap, form.part_bytes, num_parts)


def _by_pairs(columns: torch.Tensor) -> torch.Tensor:
    """Beside each column of the first half of a panel that of the second."""
    return columns.view(-1, 2, COLUMNS // 2).transpose(1, 2).flatten()


def _panel_bytes(form: PackedForm, num_inputs: int) -> int:
    num_parts, rest = divmod(num_inputs, PART_INPUTS)
    if not rest:
        return num_parts * form.part_bytes
    step = STEP_INPUTS if form.order != "columns" else _line_inputs(form)
    codes_bytes = COLUMNS * (rest + -rest % step) * form.bits // 8
    return num_parts * form.part_bytes + form.codes_offset + codes_bytes


def _line_inputs(form: PackedForm) -> int:
    """Of a column's own line."""
    return COLUMN_LINE_BYTES * 8 // form.bits


def _fill(place: torch.Tensor, codes: torch.Tensor, form: PackedForm) -> None:
    """Panels, uint8 [panels, bytes], with codes, a byte for each [panels · 32, in], whose order is not "columns"."""
    num_parts, rest = divmod(codes.shape[1], PART_INPUTS)
    codes = _filled(codes, STEP_INPUTS).view(len(place), COLUMNS, -1)
    for begin, number in ((0, num_parts), (num_parts, int(rest > 0))):
        if not number:
            continue
        own = place[:, begin * form.part_bytes :]
        inputs = codes[:, :, begin * PART_INPUTS :]
        if not begin:
            own, inputs = own[:, : number * form.part_bytes], inputs[:, :, : number * PART_INPUTS]
        lines = _lines(inputs.view(len(place), COLUMNS, number, -1), form)
        own.view(len(place), number, -1)[:, :, form.codes_offset :].copy_(lines.flatten(2))


def _lines(codes: torch.Tensor, form: PackedForm) -> torch.Tensor:
    """uint8 [panels, 32, parts, in] → codes in their order, [panels, parts, …], not moved if that can wait."""
    num_panels, _, num_parts, num_inputs = codes.shape
    if form.order == "singles":
        vectors = codes.permute(0, 2, 3, 1)
    else:
        # A quarter of the columns with both inputs of a pair in each vector.
        quarters = codes.view(num_panels, 4, COLUMNS // 4, num_parts, num_inputs // 2, 2)
        vectors = quarters.permute(0, 3, 4, 1, 2, 5)
    of_lane = vectors.reshape(num_panels, num_parts, -1, 32 // form.bits, LANES).transpose(3, 4)
    if form.bits == 4:
        of_lane = of_lane[..., ::2] | of_lane[..., 1::2] << 4
    return of_lane


def _filled(codes: torch.Tensor, size: int) -> torch.Tensor:
    """With zeros behind each row, up to a multiple of a size."""
    padding = -codes.shape[-1] % size
    return functional.pad(codes, (0, padding)) if padding else codes


def _group_size(weight: Packed) -> int:
    assert isinstance(weight, GroupInt | Codebook | ScaledFp8)
    return weight.group_size


def _kept_codes(weight: Packed) -> torch.Tensor:
    """As a weight has them, uint8 [out, bytes]."""
    assert isinstance(weight, GroupInt | Codebook | ScaledFp8)
    return weight.numbers.view(torch.uint8) if isinstance(weight, ScaledFp8) else weight.codes


def _line_codes(weight: Packed, form: PackedForm) -> torch.Tensor:
    """Kept codes, but where digits are shared for those with a scale of 0: they stand for 0 without it."""
    codes = _kept_codes(weight)
    if not form.shares_digits:
        return codes
    is_zero = tables_of(weight)["scales"] == 0
    if is_zero.any():
        codes = codes.clone()
        codes.view(*is_zero.shape, -1)[is_zero] = _ZEROS
    return codes


def _codes(weight: Packed) -> torch.Tensor:
    """A byte for each, [out, in]."""
    kept = _kept_codes(weight)
    return kept if _bits(weight) == 8 else unpack_halves(kept)


def _decode(weight: Packed) -> Literal["int", "e4m3"] | tuple[float, ...]:
    if isinstance(weight, Codebook):
        return weight.table
    return "int" if isinstance(weight, GroupInt) else "e4m3"


def _bits(weight: Packed) -> Literal[4, 8]:
    if isinstance(weight, GroupInt):
        return weight.bits
    return 4 if isinstance(weight, Codebook) else 8


def tables_of(weight: Packed) -> Mapping[str, torch.Tensor]:
    """What codes are multiplied with, [out, runs of inputs], by the names of the weight's parts, in their order in a part."""
    assert isinstance(weight, GroupInt | Codebook | ScaledFp8)
    if not isinstance(weight, GroupInt):
        return {"scales": weight.scales}
    tables = {
        "scales": weight.scales,
        "scale_units": weight.scale_units,
        "zero_points": weight.zero_points,
        "minimums": weight.minimums,
        "minimum_units": weight.minimum_units,
    }
    return {name: table for name, table in tables.items() if table is not None}


def _run(weight: Packed, name: str) -> int:
    """Inputs that share a number of a table."""
    if name.endswith("units"):
        return weight.shape[-1] // tables_of(weight)[name].shape[-1]
    return _group_size(weight)


def _is_exact(weight: Packed) -> bool:
    tables = tables_of(weight)
    digits = [
        _NUMBER_DIGITS[tables[name].dtype] for name in ("scales", "scale_units") if name in tables
    ]
    return sum(digits) + (8 if "zero_points" in tables else _bits(weight)) <= _FLOAT_DIGITS


def _is_liftable(weight: Packed) -> bool:
    if not isinstance(weight, GroupInt) or weight.bits != 8 or len(tables_of(weight)) > 1:
        return False
    lifted = LIFT + weight.centre
    digits = lifted.bit_length() - (lifted & -lifted).bit_length() + 1
    fits = digits + _NUMBER_DIGITS[weight.scales.dtype] <= _FLOAT_DIGITS
    return fits and bool(weight.scales.abs().amax() <= _MAX_LIFTED_SCALE)


def _shares_digits(weight: Packed) -> bool:
    if not isinstance(weight, GroupInt) or weight.bits != 4 or weight.centre != _ZEROS & 15:
        return False
    if len(tables_of(weight)) > 1:
        return False
    size = weight.scales.abs().float()
    fits = (size <= _MAX_SHARED_SCALE) & ((size >= 1 / _MAX_SHARED_SCALE) | (size == 0))
    return bool(fits.all())
