"""The likeliest token of each row of logits, read once as they are: torch converts them to float32 first, and its
maximum with an index compares one by one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements
from pagemesh.kernels.jit.emit import F32, I1, I32, I64, LANES, VEC_I32, Emitter, fold
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.vector_math import maximum, sum_lanes

_NOWHERE: Final = 2**31 - 1
_ALL: Final = range(LANES)


def arg_max(
    logits: torch.Tensor, indices: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [R, vocab]: each row's greatest value, float32 [R], and where it stands first, int64 [R].

    The value of a row with a NaN is NaN, and its index any. As `torch.max`. On a CPU the indices are written to
    `indices`, a dense tensor, if it is given.
    """
    if logits.device.type != "cpu":
        greatest = logits.float().max(dim=-1)
        return greatest.values, greatest.indices
    return ArgMax(indices)(logits)


class ArgMax:
    """`arg_max` on a CPU. What is asked of torch about logits is asked once of those that come again and again: behind a
    step's weights that takes longer than the kernel."""

    def __init__(self, indices: torch.Tensor | None = None) -> None:
        self._given = indices
        self._seen: Callable[[], torch.Tensor | None] = lambda: None

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and indices, there until the next call."""
        if self._seen() is not logits:
            dense = logits if logits.stride(-1) == 1 else logits.contiguous()
            num_rows, size = dense.shape
            values, indices = torch.empty(num_rows, dtype=torch.float32), self._given
            if indices is None:
                indices = torch.empty(num_rows, dtype=torch.int64)
            addresses = (dense.data_ptr(), dense.stride(0), values.data_ptr(), indices.data_ptr())
            self._run = partial(_compile(size, dense.dtype).run, num_rows, size, addresses)
            self._seen, self._found = weakref.ref(dense), (values, indices)
        self._run()
        return self._found


@per_isa
def _compile(recipe: Recipe, size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["logits"], b.mul(row, values["stride"]))
        vectors = RowVectors(e, source, size, dtype)
        best = _greatest(e, vectors)
        b.store(_lane(e, best), e.at(values["values"], row))
        first = b.sext(_lane(e, _first_of(e, vectors, best)), I64)
        b.store(first, e.at(values["indices"], row))

    arguments = {"logits": ELEMENT_TYPES[dtype], "stride": None, "values": F32, "indices": I64}
    return RowKernel(recipe, arguments, emit_row)


class RowVectors:
    """A row, 16 elements at a time; behind its end it is -inf."""

    def __init__(self, e: Emitter, source: ir.Value, size: int, dtype: str) -> None:
        self._e, self._source, self.size, self._dtype = e, source, size, dtype
        self.num_whole = size // LANES
        self.has_rest = size % LANES > 0

    def at(self, number: ir.Value) -> ir.Value:
        """One of those that are whole."""
        place = self._e.builder.mul(number, self._e.int64(LANES))
        return load_elements(self._e, self._e.at(self._source, place), self._dtype)

    def rest(self) -> ir.Value:
        """The one behind them."""
        e, num_left = self._e, self.size % LANES
        exists = ir.Constant(ir.VectorType(I1, LANES), [int(lane < num_left) for lane in _ALL])
        place = e.at(self._source, e.int64(self.num_whole * LANES))
        values = load_elements(e, place, self._dtype, exists)
        return e.builder.select(exists, values, e.splat(float("-inf")))


def _greatest(e: Emitter, vectors: RowVectors) -> ir.Value:
    """In all lanes; NaN if there is one."""
    b = e.builder

    def take(values: ir.Value, best: ir.Value, wrong: ir.Value) -> list[ir.Value]:
        is_nan = b.fcmp_unordered("uno", values, values)
        return [maximum(e, values, best), b.select(is_nan, values, wrong)]

    carried = fold(
        e,
        e.int64(vectors.num_whole),
        [e.splat(float("-inf")), e.splat(0.0)],
        lambda number, carried: take(vectors.at(number), *carried),
    )
    best, wrong = take(vectors.rest(), *carried) if vectors.has_rest else carried
    for distance in (8, 4, 2, 1):
        best = maximum(e, best, e.shuffle(best, best, [lane ^ distance for lane in _ALL]))
    return b.fadd(best, sum_lanes(e, wrong))


def _first_of(e: Emitter, vectors: RowVectors, best: ir.Value) -> ir.Value:
    """Where a value stands first, in all lanes; 0 if nowhere."""
    b = e.builder
    nowhere = ir.Constant(VEC_I32, [_NOWHERE] * LANES)

    def lesser(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    def take(number: ir.Value, values: ir.Value, first: ir.Value) -> list[ir.Value]:
        begin = e.broadcast(b.trunc(b.mul(number, e.int64(LANES)), I32), VEC_I32)
        places = b.add(begin, ir.Constant(VEC_I32, list(_ALL)))
        is_best = b.fcmp_ordered("==", values, best)
        return [lesser(b.select(is_best, places, nowhere), first)]

    (first,) = fold(
        e,
        e.int64(vectors.num_whole),
        [nowhere],
        lambda number, carried: take(number, vectors.at(number), carried[0]),
    )
    if vectors.has_rest:
        (first,) = take(e.int64(vectors.num_whole), vectors.rest(), first)
    for distance in (8, 4, 2, 1):
        first = lesser(first, e.shuffle(first, first, [lane ^ distance for lane in _ALL]))
    return b.select(b.icmp_signed("==", first, nowhere), ir.Constant(VEC_I32, [0] * LANES), first)


def _lane(e: Emitter, vector: ir.Value) -> ir.Value:
    return e.builder.extract_element(vector, ir.Constant(I32, 0))
