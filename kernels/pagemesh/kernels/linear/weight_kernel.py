"""Tiles of weights of any kind in Triton: what is packed becomes numbers in registers, on its way to a matrix instruction.

A packed weight's numbers are computed in float32 and rounded once to the type of the rows, in the order of
`Packed.dense`: a product with it has the bits of one with what it stands for. Where rows are codes as well, codes are
multiplied with codes, and what comes out is scaled.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier


class Form(NamedTuple):
    """How numbers are made of codes; a constant of kernels. Of dense weights it is None."""

    codes: Literal["int4", "int8", "e4m3", "e2m1", "table", "w8a8", "fp8"]
    """e2m1 and table: of 4 bits, as in MXFP4 or places in a table. Of 4 bits an even input's is in the lower half.
    w8a8 and fp8: whole numbers and e4m3 of both sides, which are multiplied as they are."""

    centre: int
    """The zero point of all inputs."""

    group: int
    """Inputs in a row that share a scale; 0 where a whole row does."""

    unit: int
    """Inputs in a row that share what scales, or minimums, are multiplied with; 0 where nothing is."""

    row_group: int = 0
    """Inputs in a row of activations that share a scale; 0 where a whole row does."""


@triton.jit
def load_tile(
    codes,
    row,
    tables,
    start,
    num_inputs,
    TYPE: tl.constexpr,
    FORM: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Numbers of the inputs from `start` on, TYPE [R, BLOCK_K], or codes as they are; anything finite beyond the last
    input.

    `codes` [R] point to where the rows' codes or numbers begin; `row` [R] are the rows' own numbers. `tables` are what
    a weight's numbers are made with, None for what it does not have: scales, their units, zero points, minimums, their
    units, the group of each input where groups are not runs in a row, and what codes stand for. IS_WHOLE: BLOCK_K
    divides `num_inputs`, of which `start` is a multiple.
    """
    if is_unpacked(FORM):
        scales, scale_units, zero_points, minimums, minimum_units, input_groups, values = tables
        numbers = load_codes(codes, values, start, num_inputs, FORM, IS_WHOLE, R, BLOCK_K)
        # Whose inputs share a number, and which of them are asked for.
        place = (row, input_groups, start, num_inputs)
        if zero_points is not None:
            numbers -= spread(zero_points, place, FORM.group, FORM, IS_WHOLE, R, BLOCK_K)
        elif FORM.centre:
            numbers -= FORM.centre
        scale = spread(scales, place, FORM.group, FORM, IS_WHOLE, R, BLOCK_K)
        if scale_units is not None:
            scale *= spread(scale_units, place, FORM.unit, FORM, IS_WHOLE, R, BLOCK_K)
        numbers *= scale
        if minimums is not None:
            least = spread(minimums, place, FORM.group, FORM, IS_WHOLE, R, BLOCK_K)
            if minimum_units is not None:
                least *= spread(minimum_units, place, FORM.unit, FORM, IS_WHOLE, R, BLOCK_K)
            numbers -= least
        tile = numbers.to(TYPE)
    else:
        tile = load_run(codes, start, num_inputs, IS_WHOLE, BLOCK_K)
    return tile


@triton.jit(do_not_specialize=["num_rows"])
def take_rows_kernel(
    numbers,
    weight,
    row_size,
    scales,
    scale_units,
    zero_points,
    minimums,
    minimum_units,
    input_groups,
    table,
    output,
    num_rows,
    num_inputs,
    FORM: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    TYPE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """What rows of a matrix stand for: `output` [num_rows, num_inputs] of `numbers` int64 [num_rows]."""
    wait_for_earlier(EARLY)
    place = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row = tl.load(numbers + tl.minimum(place, num_rows - 1))
    start = tl.program_id(1) * BLOCK_K
    tables = (scales, scale_units, zero_points, minimums, minimum_units, input_groups, table)
    tile = load_tile(
        weight + row * row_size, row, tables, start, num_inputs,
        TYPE, FORM, IS_WHOLE, BLOCK_ROWS, BLOCK_K,
    )  # fmt: skip
    column = start + tl.arange(0, BLOCK_K)
    mask = (place < num_rows)[:, None] & (column < num_inputs)[None, :]
    tl.store(output + place[:, None] * num_inputs + column[None, :], tile, mask=mask)


@triton.jit
def load_run(rows, start, size, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """What `rows` [R] have from `start` on, [R, BLOCK]; zeros beyond `size`, which BLOCK divides if IS_WHOLE."""
    column = start + tl.arange(0, BLOCK)
    mask = None if IS_WHOLE else (column < size)[None, :]
    other = None if IS_WHOLE else 0.0
    return tl.load(rows[:, None] + column[None, :], mask=mask, other=other)


@triton.jit
def load_codes(
    codes,
    values,
    start,
    num_inputs,
    FORM: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """What the codes of a tile stand for before they are scaled, float32 [R, BLOCK_K]."""
    if are_halves(FORM):
        found = load_run(codes, start // 2, num_inputs // 2, IS_WHOLE, BLOCK_K // 2)
        found = tl.interleave(found & 15, found >> 4)
    else:
        found = load_run(codes, start, num_inputs, IS_WHOLE, BLOCK_K)
    if FORM.codes == "e2m1":
        numbers = e2m1_of(found)
    elif FORM.codes == "table":
        line = tl.load(values + tl.arange(0, 16))[None, :]
        numbers = tl.gather(tl.broadcast_to(line, (R, 16)), found.to(tl.int32), 1)
    elif FORM.codes == "e4m3" and found.dtype == tl.uint8:
        numbers = e4m3_of(found)
    else:
        numbers = found.to(tl.float32)
    return numbers


@triton.constexpr_function
def is_unpacked(form):
    """Whether numbers are made of codes before they are multiplied."""
    return form is not None and form.codes not in ("w8a8", "fp8")


@triton.constexpr_function
def is_fp8(form):
    """Whether floats of 8 bits are multiplied with such."""
    return form is not None and form.codes == "fp8"


@triton.constexpr_function
def is_scaled_by_runs(form):
    """Whether the sums of runs of inputs are scaled, each for itself."""
    return form is not None and form.codes == "fp8" and (form.group > 0 or form.row_group > 0)


@triton.constexpr_function
def is_scaled_at_the_end(form):
    """Whether whole sums are scaled, by the scales of both sides' rows."""
    if form is None:
        return False
    return form.codes == "w8a8" or (form.codes == "fp8" and not (form.group or form.row_group))


@triton.constexpr_function
def are_halves(form):
    """Whether there are two codes in a byte."""
    return form is not None and form.codes in ("int4", "e2m1", "table")


@triton.jit
def codes_before(start, FORM: tl.constexpr):
    """Elements of a row in front of an input."""
    return start // 2 if are_halves(FORM) else start


@triton.jit
def spread(
    table,
    place,
    SIZE: tl.constexpr,
    FORM: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """For each input of a tile the number that SIZE inputs of its row share, all of them if that is 0: float32
    [R, BLOCK_K], or [R, 1] where it is the same for all inputs of the tile. `table` [rows, numbers]."""
    row, input_groups, start, num_inputs = place
    first = table + row * (tl.cdiv(num_inputs, SIZE) if SIZE else 1)
    if SIZE == 0:
        numbers = tl.load(first)[:, None]
    elif input_groups is None and SIZE % BLOCK_K == 0:
        numbers = tl.load(first + start // SIZE)[:, None]
    elif input_groups is None and BLOCK_K % SIZE == 0:
        NUMBER: tl.constexpr = BLOCK_K // SIZE
        run = start // SIZE + tl.arange(0, NUMBER)
        mask = None if IS_WHOLE else (run * SIZE < num_inputs)[None, :]
        other = None if IS_WHOLE else 0
        each = tl.load(first[:, None] + run[None, :], mask=mask, other=other)
        each = tl.broadcast_to(each[:, :, None], (R, NUMBER, SIZE))
        numbers = tl.reshape(each, (R, BLOCK_K))
    else:
        column = tl.minimum(start + tl.arange(0, BLOCK_K), num_inputs - 1)
        run = column // SIZE if input_groups is None else tl.load(input_groups + column)
        numbers = tl.load(first[:, None] + run[None, :])
    if (FORM.codes == "e2m1" or FORM.codes == "table") and numbers.dtype == tl.uint8:
        numbers = e8m0_of(numbers)
    else:
        numbers = numbers.to(tl.float32)
    return numbers


@triton.jit
def e4m3_of(code):
    """Floats of 8 bits, where no instruction converts them: as float16 they are 2^-8 of their size, subnormals too."""
    digits = (code & 0x7F).to(tl.uint16)
    half = ((code & 0x80).to(tl.uint16) << 8) | (digits << 7)
    number = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(digits == 0x7F, float("nan"), number)


@triton.jit
def e2m1_of(code):
    """Floats of 4 bits: as float16 they are 2^-14 of their size, subnormals too."""
    code = code.to(tl.uint16)
    half = ((code & 8) << 12) | ((code & 7) << 9)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def e8m0_of(code):
    """Powers of two by their exponents in a float32, whose 0 is a subnormal."""
    exponent = code.to(tl.int32)
    bits = tl.where(exponent == 0, 0x400000, exponent << 23)
    return tl.where(exponent == 255, float("nan"), bits.to(tl.float32, bitcast=True))
