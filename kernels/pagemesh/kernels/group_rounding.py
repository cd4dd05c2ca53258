"""Groups of a weight's numbers rounded on CPUs: with each range, or scale, that is tried for one, and the best of them.

What is computed, in which order, is said by the plain definition, which GPUs run (`models/quantization/rounding.py`):
bits are the same. There each operation passes over memory; here the numbers of 16 groups lie side by side in the
first-level cache, and one of each is in a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.eight_bits import narrow_fp8, widen_fp8
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements, store_elements
from pagemesh.kernels.jit.emit import (
    I8,
    I16,
    I32,
    LANES,
    VEC_I32,
    Emitter,
    fold,
    int_lanes,
    transposed,
)
from pagemesh.kernels.jit.pair_dots import round_to_bfloat16
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.vector_math import clamp, maximum

LARGEST_INT4: Final = 15
LARGEST_INT8: Final = 127
INT8_CENTRE: Final = 128
"""The code of zero."""
LARGEST_FP8: Final = 448.0
CUT: Final = 1 / 32
"""See `round_int4`."""
FP8_SCALES: Final = 8
"""See `round_fp8`."""


def round_int4(
    numbers: torch.Tensor,
    group_size: int,
    codes: torch.Tensor,
    scales: torch.Tensor,
    minimums: torch.Tensor,
) -> None:
    """Dense [..., in] to codes, uint8 [..., in / 2], an even input's in the lower half, scales and minimums, bfloat16
    [..., groups]. A group is a power of two from 32 on and divides the inputs.

    Of a group's range, or one that is cut by a 32nd of it at either end, that with the least squared error is taken.
    """
    addresses = [tensor.data_ptr() for tensor in (codes, scales, minimums)]
    _run("int4", numbers, group_size, scales.numel(), addresses)


def round_int8(
    numbers: torch.Tensor, group_size: int, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """Dense [..., in] to codes, uint8 like it, and scales, bfloat16 [..., groups]. A group is a multiple of 16 and divides
    the inputs.

    The largest number of a group is 127 steps from zero, as far as a bfloat16 can say.
    """
    addresses = [codes.data_ptr(), scales.data_ptr(), 0]
    _run("int8", numbers, group_size, scales.numel(), addresses)


def round_fp8(
    numbers: torch.Tensor, group_size: int, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """Dense [..., in] to codes, float8_e4m3fn like it, and scales, bfloat16 [..., groups]. A group is a power of two from
    16 on; the last one of a row has what is left.

    Of eight scales, from the least with which the largest number fits to nearly twice that, that with the least
    squared error is taken.
    """
    addresses = [codes.data_ptr(), scales.data_ptr(), 0]
    _run("fp8", numbers, group_size, scales.numel(), addresses)


def _run(
    kind: str, numbers: torch.Tensor, group_size: int, num_groups: int, addresses: list[int]
) -> None:
    num_inputs = numbers.shape[-1]
    form = _Form(
        str(numbers.dtype).removeprefix("torch."), group_size, num_inputs % group_size == 0
    )
    kernel = _compile(kind, form)
    num_blocks = -(-num_groups // LANES)
    arguments = (numbers.data_ptr(), num_inputs, num_groups, *addresses)
    kernel.run(num_blocks, LANES * group_size, arguments)


class _Form(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    group_size: int
    is_whole: bool
    """Whether all groups are."""


@per_isa
def _compile(recipe: Recipe, kind: str, form: _Form) -> RowKernel:
    arguments = {"numbers": ELEMENT_TYPES[form.dtype], "num_inputs": None, "num_groups": None}
    arguments |= {"codes": I8, "scales": I16, "minimums": I16}

    def emit_row(e: Emitter, values: Values, block: ir.Value) -> None:
        groups = _Groups(e, form, values, block)
        match kind:
            case "int4":
                _emit_int4(e, groups, values)
            case "int8":
                _emit_int8(e, groups, values)
            case _:
                _emit_fp8(e, groups, values)

    return RowKernel(recipe, arguments, emit_row)


class _Groups:
    """16 of them, a lane for each; behind the last, that once more."""

    def __init__(self, e: Emitter, form: _Form, values: Values, block: ir.Value) -> None:
        b = e.builder
        self._e, self._form, self._arguments = e, form, values
        self.size = form.group_size
        self.dtype = form.dtype
        self._first = b.mul(block, e.int64(LANES))
        self._numbers, self._squares = (e.scratch(self.size * LANES) for _ in range(2))
        self._turn()
        self.wrong = fold(
            e,
            e.int64(self.size),
            [e.splat(0.0)],
            lambda place, sums: [b.fadd(sums[0], b.fsub(self.at(place), self.at(place)))],
        )[0]
        """NaN for groups with a number that is not finite, else 0."""

    def at(self, place: ir.Value) -> ir.Value:
        """A number of each."""
        return self._e.load(self._e.at(self._numbers, self._begin(place)), 64)

    def number(self, lane: ir.Value) -> ir.Value:
        """Which group of all is in a lane."""
        e, b = self._e, self._e.builder
        number = b.add(self._first, lane)
        last = b.sub(self._arguments["num_groups"], e.int64(1))
        return b.select(b.icmp_signed("<", number, last), number, last)

    def begin(self, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where a group's numbers begin among all, and how many it has."""
        e, b, size = self._e, self._e.builder, self._e.int64(self.size)
        if self._form.is_whole:
            return b.mul(number, size), size
        num_inputs = self._arguments["num_inputs"]
        per_row = b.sdiv(b.add(num_inputs, e.int64(self.size - 1)), size)
        own = b.mul(b.srem(number, per_row), size)
        left = b.sub(num_inputs, own)
        return (
            b.add(b.mul(b.sdiv(number, per_row), num_inputs), own),
            b.select(b.icmp_signed("<", left, size), left, size),
        )

    def exists(self, place: ir.Value, count: ir.Value) -> ir.Value | None:
        """Which of 16 numbers from a place on a group has; None for all."""
        e, b = self._e, self._e.builder
        if self._form.is_whole:
            return None
        left = e.broadcast(b.trunc(b.sub(count, place), I32), VEC_I32)
        return b.icmp_signed("<", ir.Constant(VEC_I32, list(range(LANES))), left)

    def largest(self) -> ir.Value:
        """Magnitude in each."""
        e = self._e
        return fold(
            e,
            e.int64(self.size),
            [e.splat(0.0)],
            lambda place, found: [maximum(e, e.call("llvm.fabs", self.at(place)), found[0])],
        )[0]

    def least_error(self, tried: Sequence[_Tried]) -> _Tried:
        """That of which the squares of errors have the least sum; of equal ones the first."""
        b = self._e.builder
        best, best_error = tried[0], self._sum_squares(tried[0])
        for each in tried[1:]:
            error = self._sum_squares(each)
            is_less = b.fcmp_ordered("<", error, best_error)
            best_error = b.select(is_less, error, best_error)
            kept = (b.select(is_less, *pair) for pair in zip(each.kept, best.kept, strict=True))
            best = _Tried(tuple(kept), each.error)
        return best

    def _sum_squares(self, tried: _Tried) -> ir.Value:
        """By halves, as the definition has it."""
        e, b = self._e, self._e.builder
        squares = self._squares
        with e.loop(e.int64(0), e.int64(self.size)) as place:
            error = tried.error(self.at(place), *tried.kept)
            e.store(b.fmul(error, error), e.at(squares, self._begin(place)), 64)
        half = self.size // 2
        while half:
            with e.loop(e.int64(0), e.int64(half)) as place:
                own = e.at(squares, self._begin(place))
                other = e.at(squares, self._begin(b.add(place, e.int64(half))))
                e.store(b.fadd(e.load(own, 64), e.load(other, 64)), own, 64)
            half //= 2
        return e.load(squares, 64)

    def _begin(self, place: ir.Value) -> ir.Value:
        return self._e.builder.mul(place, self._e.int64(LANES))

    def _turn(self) -> None:
        """Read their numbers, 16 of each at a time."""
        e, b = self._e, self._e.builder
        found = [self.begin(self.number(e.int64(lane))) for lane in range(LANES)]
        with e.loop(e.int64(0), e.int64(self.size), LANES) as place:
            rows = [
                load_elements(
                    e,
                    e.at(self._arguments["numbers"], b.add(begin, place)),
                    self._form.dtype,
                    self.exists(place, count),
                )
                for begin, count in found
            ]
            for number, vector in enumerate(transposed(e, rows)):
                target = self._begin(b.add(place, e.int64(number)))
                e.store(vector, e.at(self._numbers, target), 64)


class _Tried(NamedTuple):
    """What codes of a group may be multiplied with."""

    kept: tuple[ir.Value, ...]
    error: Callable[..., ir.Value]
    """Of a number and what is kept."""


def _emit_int4(e: Emitter, groups: _Groups, values: Values) -> None:
    b = e.builder

    def extend(place: ir.Value, bounds: Sequence[ir.Value]) -> list[ir.Value]:
        number = groups.at(place)
        least = b.select(b.fcmp_ordered("<", number, bounds[0]), number, bounds[0])
        return [least, maximum(e, number, bounds[1])]

    first = groups.at(e.int64(0))
    least, largest = fold(e, e.int64(groups.size), [first, first], extend)
    cut = b.fmul(b.fsub(largest, least), e.splat(CUT))

    def error(number: ir.Value, scale: ir.Value, minimum: ir.Value) -> ir.Value:
        raised = b.fadd(number, minimum)
        return b.fsub(b.fmul(_int4_code(e, raised, _divisor(e, scale)), scale), raised)

    tried = []
    for bottom in (least, b.fadd(least, cut)):
        minimum = round_to_bfloat16(e, b.fneg(bottom))
        for top in (largest, b.fsub(largest, cut)):
            steps = b.fdiv(b.fsub(top, bottom), e.splat(float(LARGEST_INT4)))
            tried.append(_Tried((round_to_bfloat16(e, steps), minimum), error))
    scale, minimum = groups.least_error(tried).kept
    lanes = _Lanes(e, [_divisor(e, scale), minimum])
    stored = _Lanes(e, [b.fadd(scale, groups.wrong), b.fadd(minimum, groups.wrong)])
    with e.loop(e.int64(0), e.int64(LANES)) as lane:
        number = groups.number(lane)
        for name, each in zip(("scales", "minimums"), stored.at(lane), strict=True):
            b.store(_bfloat16(e, each), e.at(values[name], number))
        divisor, minimum = (e.broadcast(each) for each in lanes.at(lane))
        begin, _ = groups.begin(number)
        with e.loop(e.int64(0), e.int64(groups.size), 2 * LANES) as place:
            source = b.add(begin, place)
            lower, upper = (
                load_elements(e, e.at(values["numbers"], each), groups.dtype)
                for each in (source, b.add(source, e.int64(LANES)))
            )
            lower, upper = (
                b.fptosi(_int4_code(e, b.fadd(each, minimum), divisor), VEC_I32)
                for each in (lower, upper)
            )
            even, odd = (e.shuffle(lower, upper, range(i, 2 * LANES, 2)) for i in range(2))
            packed = b.trunc(b.or_(even, b.shl(odd, int_lanes(4))), ir.VectorType(I8, LANES))
            e.store(packed, e.at(values["codes"], b.sdiv(source, e.int64(2))), 1)


def _int4_code(e: Emitter, raised: ir.Value, divisor: ir.Value) -> ir.Value:
    """As a float."""
    rounded = e.call("llvm.rint", e.builder.fdiv(raised, divisor))
    return clamp(e, rounded, 0.0, float(LARGEST_INT4))


def _emit_fp8(e: Emitter, groups: _Groups, values: Values) -> None:
    b = e.builder
    least = b.fdiv(groups.largest(), e.splat(LARGEST_FP8))

    def error(number: ir.Value, scale: ir.Value) -> ir.Value:
        code = narrow_fp8(e, b.fdiv(number, _divisor(e, scale)))
        return b.fsub(b.fmul(widen_fp8(e, code), scale), number)

    factors = torch.tensor([2 ** (step / FP8_SCALES) for step in range(FP8_SCALES)]).tolist()
    tried = [
        _Tried((round_to_bfloat16(e, b.fmul(least, e.splat(factor))),), error) for factor in factors
    ]
    (scale,) = groups.least_error(tried).kept
    _store_scaled(
        e,
        groups,
        values,
        scale,
        lambda numbers, target, exists: store_elements(e, numbers, target, "float8_e4m3fn", exists),
    )


def _emit_int8(e: Emitter, groups: _Groups, values: Values) -> None:
    b = e.builder
    scale = round_to_bfloat16(e, b.fdiv(groups.largest(), e.splat(float(LARGEST_INT8))))

    def store(numbers: ir.Value, target: ir.Value, _: ir.Value | None) -> None:
        rounded = e.call("llvm.rint", numbers)
        steps = b.fptosi(clamp(e, rounded, -float(LARGEST_INT8), float(LARGEST_INT8)), VEC_I32)
        codes = b.add(steps, int_lanes(INT8_CENTRE))
        e.store(b.trunc(codes, ir.VectorType(I8, LANES)), target, 1)

    _store_scaled(e, groups, values, scale, store)


def _store_scaled(
    e: Emitter,
    groups: _Groups,
    values: Values,
    scale: ir.Value,
    store: Callable[[ir.Value, ir.Value, ir.Value | None], None],
) -> None:
    """Each group's scale, and its numbers divided by it: 16 at a time, whose codes `store` makes."""
    b = e.builder
    lanes = _Lanes(e, [_divisor(e, scale), b.fadd(scale, groups.wrong)])
    with e.loop(e.int64(0), e.int64(LANES)) as lane:
        number = groups.number(lane)
        divisor, stored = lanes.at(lane)
        b.store(_bfloat16(e, stored), e.at(values["scales"], number))
        divisor = e.broadcast(divisor)
        begin, count = groups.begin(number)
        with e.loop(e.int64(0), count, LANES) as place:
            source, exists = b.add(begin, place), groups.exists(place, count)
            numbers = load_elements(e, e.at(values["numbers"], source), groups.dtype, exists)
            store(b.fdiv(numbers, divisor), e.at(values["codes"], source), exists)


class _Lanes:
    """Vectors in memory, to be read lane by lane."""

    def __init__(self, e: Emitter, vectors: Sequence[ir.Value]) -> None:
        self._e = e
        self._memory = [e.scratch(LANES) for _ in vectors]
        for memory, vector in zip(self._memory, vectors, strict=True):
            e.store(vector, memory, 64)

    def at(self, lane: ir.Value) -> list[ir.Value]:
        """One of each."""
        return [self._e.builder.load(self._e.at(memory, lane)) for memory in self._memory]


def _divisor(e: Emitter, scale: ir.Value) -> ir.Value:
    """Of groups whose numbers are all alike, none is divided by 0."""
    b = e.builder
    return b.select(b.fcmp_ordered("==", scale, e.splat(0.0)), e.splat(1.0), scale)


def _bfloat16(e: Emitter, number: ir.Value) -> ir.Value:
    """Of a float that it has."""
    b = e.builder
    return b.trunc(b.lshr(b.bitcast(number, I32), ir.Constant(I32, 16)), I16)
