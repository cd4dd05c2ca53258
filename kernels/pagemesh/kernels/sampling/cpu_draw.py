"""Drawing tokens on a CPU: temperature, top-k, min-p, top-p, then one draw by the inverse of the distribution function.

In float64 and in order of token ids: rounding then moves a boundary between two tokens by 1e-16, and equal logits never
make the outcome depend on how a sort breaks ties. A row at a time, in the memory of one row for each thread.

Weights are made once. What bounds them, the k-th highest logit and the least weight of a nucleus, is found by halving
the range of floats in which it must lie, whose bits have the floats' order: each look at a row is one sum over it. A
token is then looked for among blocks, and within one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir

from pagemesh.kernels.arg_max import RowVectors
from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.doubles import (
    DOUBLE,
    all_lanes,
    exp,
    load_doubles,
    spread,
    store_doubles,
    widen,
)
from pagemesh.kernels.jit.elements import ELEMENT_TYPES
from pagemesh.kernels.jit.emit import F32, I32, I64, LANES, VEC_I32, Emitter, fold, local, repeat
from pagemesh.kernels.jit.parallel import RowKernel, Values

_BLOCK: Final = 1024
"""Tokens that are passed over at once where none of them is drawn."""

_SIGN: Final = 0x7FFFFFFF
_NOTHING: Final = float("-inf")
_ZERO: Final = ir.Constant(DOUBLE, 0.0)
_ONE: Final = ir.Constant(DOUBLE, 1.0)


class DrawParameters(NamedTuple):
    """What is asked of each row; dense arrays."""

    temperatures: npt.NDArray[np.float64]
    """Above 0."""

    top_ks: npt.NDArray[np.int64]
    """0 and less keep all; of those equal to the k-th highest, all stay."""

    min_ps: npt.NDArray[np.float64]
    """Tokens less likely than so many times the likeliest are left out; 0 keeps all.

    Nguyen et al. 2024, "Turning Up the Heat" (https://arxiv.org/abs/2407.01082). Behind top-k, which it commutes with:
    both keep a row's likeliest tokens.
    """

    top_ps: npt.NDArray[np.float64]
    """The likeliest tokens that together reach this share stay, and those equal to the last of them; 1 keeps all."""

    draws: npt.NDArray[np.float64]
    """Numbers in [0, 1)."""


class CpuDraws:
    """Draws for one thread at a time."""

    def __init__(self) -> None:
        self._weights = torch.empty(0, dtype=torch.float64)

    def __call__(self, logits: torch.Tensor, parameters: DrawParameters) -> npt.NDArray[np.int64]:
        """A token for each row of logits [R, vocab], each of which has a finite maximum."""
        rows = logits if logits.stride(1) == 1 else logits.contiguous()
        num_rows, size = rows.shape
        needed = torch.get_num_threads() * _row_doubles(size)
        if len(self._weights) < needed:
            self._weights = torch.empty(needed, dtype=torch.float64)
        num_threads, token_ids = np.zeros(1, np.int64), np.empty(num_rows, np.int64)
        addresses = [each.ctypes.data for each in (*parameters, num_threads, token_ids)]
        given = (rows.data_ptr(), rows.stride(0), *addresses, self._weights.data_ptr())
        _compile(size, rows.dtype).run(num_rows, size, given, in_pieces=False)
        return token_ids


def _num_blocks(size: int) -> int:
    return -(-size // _BLOCK)


def _row_doubles(size: int) -> int:
    """Of a row's memory: weights, and the sums of blocks up to the end of a line."""
    num_blocks = _num_blocks(size)
    return num_blocks * _BLOCK + -(-num_blocks // LANES) * LANES


@per_isa
def _compile(recipe: Recipe, size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    arguments = {
        "logits": ELEMENT_TYPES[dtype],
        "stride": None,
        "temperatures": DOUBLE,
        "top_ks": I64,
        "min_ps": DOUBLE,
        "top_ps": DOUBLE,
        "draws": DOUBLE,
        "num_threads": I64,  # that have begun
        "token_ids": I64,
        "weights": DOUBLE,  # [threads, doubles of a row]
    }

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        with b.goto_entry_block():
            thread = b.atomic_rmw("add", values["num_threads"], e.int64(1), "monotonic")
            weights = e.at(values["weights"], b.mul(thread, e.int64(_row_doubles(size))))
        source = e.at(values["logits"], b.mul(row, values["stride"]))
        asked = {
            name: b.load(e.at(values[name], row))
            for name in ("temperatures", "top_ks", "min_ps", "top_ps", "draws")
        }
        token_id = _RowDraw(e, RowVectors(e, source, size, dtype), weights).token_id(asked)
        b.store(token_id, e.at(values["token_ids"], row))

    return RowKernel(recipe, arguments, emit_row)


class _RowDraw:
    """Emits the draw of one row. Its logits lie in the second half of the memory of its weights, float32, until they
    become these from the first one on."""

    def __init__(self, e: Emitter, row: RowVectors, weights: ir.Value) -> None:
        self._e, self._b = e, e.builder
        self._row = row
        self._num_blocks = _num_blocks(row.size)
        self._num_tokens = self._num_blocks * _BLOCK
        self._weights = weights
        floats = self._b.bitcast(weights, F32.as_pointer())
        self._logits = e.at(floats, e.int64(self._num_tokens))
        self._sums = e.at(weights, e.int64(self._num_tokens))
        """Of each block."""

    def token_id(self, asked: Values) -> ir.Value:
        """What is drawn."""
        e, b = self._e, self._b
        greatest = self._bring()
        least = local(e, F32, ir.Constant(F32, _NOTHING))
        with b.if_then(b.icmp_signed(">", asked["top_ks"], e.int64(0))):
            b.store(self._kth_highest(greatest, asked["top_ks"]), least)
        total = local(e, DOUBLE, _ZERO)
        b.store(self._weigh(greatest, b.load(least), asked), total)
        with b.if_then(b.fcmp_ordered("<", asked["top_ps"], _ONE)):
            bound = self._least_of_nucleus(b.fmul(asked["top_ps"], b.load(total)))
            b.store(self._drop_below(bound), total)
        target = b.fmul(asked["draws"], b.load(total))
        block, before = self._first_beyond(self._sums, self._num_blocks, _ZERO, target)
        first = b.mul(block, e.int64(_BLOCK))
        place, _ = self._first_beyond(e.at(self._weights, first), _BLOCK, before, target)
        return b.add(first, place)

    def _bring(self) -> ir.Value:
        """Copy the logits, and -inf behind them; gives the greatest."""
        e, b, row = self._e, self._b, self._row

        def bring(number: ir.Value, vector: ir.Value, best: ir.Value) -> ir.Value:
            e.store(vector, e.at(self._logits, b.mul(number, e.int64(LANES))), 64)
            return self._greater(vector, best)

        nothing = e.splat(_NOTHING)
        (best,) = fold(
            e,
            e.int64(row.num_whole),
            [nothing],
            lambda number, carried: [bring(number, row.at(number), carried[0])],
        )
        num_brought = row.num_whole
        if row.has_rest:
            best = bring(e.int64(num_brought), row.rest(), best)
            num_brought += 1
        with e.loop(e.int64(num_brought), e.int64(self._num_tokens // LANES)) as number:
            bring(number, nothing, best)
        for distance in (8, 4, 2, 1):
            best = self._greater(best, e.shuffle(best, best, [i ^ distance for i in range(LANES)]))
        return b.extract_element(best, ir.Constant(I32, 0))

    def _kth_highest(self, greatest: ir.Value, k: ir.Value) -> ir.Value:
        """A logit that so many reach, or more where several are the k-th highest."""
        e, b = self._e, self._b
        low = local(e, I64, b.sext(_ordered(b, ir.Constant(F32, _NOTHING)), I64))
        high = local(e, I64, b.sext(_ordered(b, greatest), I64))
        is_found = local(e, I64, e.int64(0))

        def goes_on() -> ir.Value:
            is_open = b.icmp_signed("<", b.load(low), b.load(high))
            return b.and_(is_open, b.icmp_signed("==", b.load(is_found), e.int64(0)))

        def halve() -> None:
            pivot = self._above_middle(low, high)
            number = self._num_reaching(_unordered(b, b.trunc(pivot, I32)))
            is_enough = b.icmp_signed(">=", number, k)
            b.store(b.select(is_enough, pivot, b.load(low)), low)
            lower = b.sub(pivot, e.int64(1))
            b.store(b.select(is_enough, b.load(high), lower), high)
            b.store(b.zext(b.icmp_signed("==", number, k), I64), is_found)

        repeat(e, goes_on, halve)
        return _unordered(b, b.trunc(b.load(low), I32))

    def _num_reaching(self, bound: ir.Value) -> ir.Value:
        """How many logits are not below a bound."""
        e, b = self._e, self._b
        bounds = e.broadcast(bound)

        def count(number: ir.Value, found: ir.Value) -> list[ir.Value]:
            vector = e.load(e.at(self._logits, b.mul(number, e.int64(LANES))), 64)
            reaches = b.fcmp_ordered(">=", vector, bounds)
            return [b.sub(found, b.sext(reaches, VEC_I32))]

        none = ir.Constant(VEC_I32, [0] * LANES)
        num_vectors = e.int64(self._num_tokens // LANES)
        (found,) = fold(e, num_vectors, [none], lambda number, carried: count(number, carried[0]))
        for distance in (8, 4, 2, 1):
            lanes = [i ^ distance for i in range(LANES)]
            found = b.add(found, e.shuffle(found, found, lanes))
        return b.zext(b.extract_element(found, ir.Constant(I32, 0)), I64)

    def _weigh(self, greatest: ir.Value, least: ir.Value, asked: Values) -> ir.Value:
        """Make weights of logits, zeros of those below the least one and of weights below min-p; gives their sum."""
        e, b = self._e, self._b
        top, bound = (spread(e, b.fpext(each, DOUBLE)) for each in (greatest, least))
        temperature, min_p = (spread(e, asked[name]) for name in ("temperatures", "min_ps"))

        def weigh(first: ir.Value) -> list[ir.Value]:
            weights = []
            for logits in widen(e, e.load(e.at(self._logits, first), 64)):
                weight = exp(e, b.fdiv(b.fsub(logits, top), temperature))
                is_kept = b.fcmp_ordered(">=", logits, bound)
                is_kept = b.and_(is_kept, b.fcmp_ordered(">=", weight, min_p))
                weights.append(b.select(is_kept, weight, spread(e, 0.0)))
            return weights

        return self._sum_blocks(weigh)

    def _least_of_nucleus(self, mass: ir.Value) -> ir.Value:
        """The greatest weight at which the sum of those that are not less reaches a mass."""
        e, b = self._e, self._b
        low = local(e, I64, e.int64(0))
        high = local(e, I64, b.bitcast(_ONE, I64))

        def halve() -> None:
            pivot = b.bitcast(self._above_middle(low, high), DOUBLE)
            total, above, below = self._split(pivot)
            # Both bounds are weights that there are, so that few steps are left where few weights are.
            reaches = b.fcmp_ordered(">=", total, mass)
            b.store(b.select(reaches, b.bitcast(above, I64), b.load(low)), low)
            b.store(b.select(reaches, b.load(high), b.bitcast(below, I64)), high)

        repeat(e, lambda: b.icmp_signed("<", b.load(low), b.load(high)), halve)
        return b.bitcast(b.load(low), DOUBLE)

    def _split(self, pivot: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The sum of the weights that are not below it, the least of these, and the greatest of the others."""
        e, b = self._e, self._b
        pivots, zeros, ones = spread(e, pivot), spread(e, 0.0), spread(e, 1.0)

        def lesser(x: ir.Value, y: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("<", x, y), x, y)

        def split(number: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            for weights in load_doubles(e, e.at(self._weights, b.mul(number, e.int64(LANES)))):
                reaches = b.fcmp_ordered(">=", weights, pivots)
                total, above, below = carried
                carried = (
                    b.fadd(total, b.select(reaches, weights, zeros)),
                    lesser(b.select(reaches, weights, ones), above),
                    self._greater(b.select(reaches, zeros, weights), below),
                )
            return carried

        num_vectors = e.int64(self._num_tokens // LANES)
        total, above, below = fold(e, num_vectors, [zeros, ones, zeros], split)
        return (
            all_lanes(e, total, b.fadd),
            all_lanes(e, above, lesser),
            all_lanes(e, below, self._greater),
        )

    def _drop_below(self, bound: ir.Value) -> ir.Value:
        """Make zeros of smaller weights; gives the sum of the others."""
        e, b = self._e, self._b
        bounds, zeros = spread(e, bound), spread(e, 0.0)

        def drop(first: ir.Value) -> list[ir.Value]:
            found = load_doubles(e, e.at(self._weights, first))
            return [b.select(b.fcmp_ordered(">=", each, bounds), each, zeros) for each in found]

        return self._sum_blocks(drop)

    def _sum_blocks(self, weigh: Callable[[ir.Value], list[ir.Value]]) -> ir.Value:
        """Write weights, 16 from each place on, and the sums of blocks; gives the sum of these."""
        e, b = self._e, self._b

        def block(number: ir.Value, total: ir.Value) -> list[ir.Value]:
            begin = b.mul(number, e.int64(_BLOCK))

            def vector(index: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
                first = b.add(begin, b.mul(index, e.int64(LANES)))
                halves = weigh(first)
                store_doubles(e, halves, e.at(self._weights, first))
                return [b.fadd(total, half) for total, half in zip(carried, halves, strict=True)]

            num_vectors, zeros = e.int64(_BLOCK // LANES), [spread(e, 0.0)] * 2
            halves = fold(e, num_vectors, zeros, vector)
            own = all_lanes(e, b.fadd(*halves), b.fadd)
            b.store(own, e.at(self._sums, number))
            return [b.fadd(total, own)]

        (total,) = fold(
            e,
            e.int64(self._num_blocks),
            [_ZERO],
            lambda number, carried: block(number, carried[0]),
        )
        return total

    def _first_beyond(
        self, numbers: ir.Value, count: int, begin: ir.Value, target: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """The first of some numbers with which the sum from `begin` on exceeds a target, and the sum in front of it.

        Where rounding has kept all of them from it, the last that is no zero.
        """
        e, b = self._e, self._b
        place = local(e, I64, e.int64(0))
        found, before = local(e, I64, e.int64(0)), local(e, DOUBLE, begin)
        total = local(e, DOUBLE, begin)

        def goes_on() -> ir.Value:
            is_left = b.icmp_signed("<", b.load(place), e.int64(count))
            return b.and_(is_left, b.fcmp_ordered("<=", b.load(total), target))

        def add() -> None:
            number = b.load(e.at(numbers, b.load(place)))
            counts = b.fcmp_ordered(">", number, _ZERO)
            b.store(b.select(counts, b.load(place), b.load(found)), found)
            b.store(b.select(counts, b.load(total), b.load(before)), before)
            b.store(b.fadd(b.load(total), number), total)
            b.store(b.add(b.load(place), e.int64(1)), place)

        repeat(e, goes_on, add)
        return b.load(found), b.load(before)

    def _greater(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._b.select(self._b.fcmp_ordered(">", x, y), x, y)

    def _above_middle(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Above the lower bound, at most the upper one."""
        e, b = self._e, self._b
        width = b.sub(b.load(high), b.load(low))
        return b.add(b.load(low), b.ashr(b.add(width, e.int64(1)), e.int64(1)))


def _ordered(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A float32's bits as an int32 with the floats' order."""
    return _turned(b, b.bitcast(value, I32))


def _unordered(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return b.bitcast(_turned(b, bits), F32)


def _turned(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    sign = b.ashr(bits, ir.Constant(I32, 31))
    return b.xor(bits, b.and_(sign, ir.Constant(I32, _SIGN)))
