"""Rows of a table looked up on CPUs, by kernels: what a decode begins with can be recorded, too.

Of a packed table, in one pass over their codes, to the bits of `Packed.rows()`, which takes ten operations for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, has_avx512, per_isa
from pagemesh.kernels.jit.elements import (
    ELEMENT_TYPES,
    copy_elements,
    load_element,
    store_elements,
)
from pagemesh.kernels.jit.emit import F32, I8, I32, I64, LANES, VEC, VEC_I32, Emitter, int_lanes
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.linear.interface import Lookup
from pagemesh.kernels.linear.packed import Codebook, GroupInt
from pagemesh.kernels.linear.packed_parts import tables_of
from pagemesh.kernels.linear.unpacking import looked_up
from pagemesh.kernels.linear.weight import Dense, Plain

_NUMBERS: Final = {"float32": F32, "float16": ir.HalfType(), "bfloat16": ELEMENT_TYPES["bfloat16"]}
_TYPES: Final = {"uint8": I8, "int8": I8} | _NUMBERS
"""How what codes are multiplied with lies in memory, by torch's names."""


class _Table(NamedTuple):
    """What codes are multiplied with, or less by."""

    name: str
    dtype: str
    num_groups: int
    """That share a number."""


class _Form(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    bits: int
    entries: tuple[float, ...] | None
    """What codes of 4 bits stand for, if that is not themselves."""

    centre: int
    group_size: int
    tables: tuple[_Table, ...]


def make_cpu_lookup(table: Plain) -> Lookup:
    """See `make_lookup`."""
    if isinstance(table, Dense) and table.tensor.stride(1) == 1:
        row_bytes = table.tensor.element_size() * table.shape[1]
        stride = table.tensor.element_size() * table.tensor.stride(0)
        return _TableLookup(table, _compile_copy(row_bytes), [table.tensor], stride)
    if isinstance(table, GroupInt | Codebook):
        form = _form_of(table)
        if form is not None:
            tables = tables_of(table)
            kept = [table.codes, *(tables[each.name] for each in form.tables)]
            return _TableLookup(table, _compile(form), kept, table.shape[1] // form.group_size)
    return table.rows


class _TableLookup:
    """`Lookup` by a kernel."""

    def __init__(
        self, table: Plain, kernel: RowKernel, kept: Sequence[torch.Tensor], size: int
    ) -> None:
        """`kept` is what the table lies in, and `size` the kernel's own."""
        self.kept = kept
        self._dtype, (self._num_rows, self._num_inputs) = table.dtype, table.shape
        self._kernel = kernel
        self._source = self._num_rows, size, *(each.data_ptr() for each in kept)

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        values = numbers.tolist()
        if values and not 0 <= min(values) <= max(values) < self._num_rows:
            wrong = f"rows {min(values)} to {max(values)}"
            raise IndexError(f"{wrong} are not all among {self._num_rows}")
        numbers = numbers.contiguous()
        output = torch.empty(len(values), self._num_inputs, dtype=self._dtype)
        arguments = (numbers.data_ptr(), output.data_ptr(), *self._source)
        self._kernel.run(len(values), self._num_inputs, arguments)
        return output


@per_isa
def _compile_copy(recipe: Recipe, row_bytes: int) -> RowKernel:
    # As they are, whatever they stand for.
    size, word = (4, I32) if row_bytes % 4 == 0 else (1, I8)

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        number = b.load(e.at(values["numbers"], row))
        source = e.at(values["table"], b.mul(number, values["stride"]))
        target = e.at(values["output"], b.mul(row, e.int64(row_bytes)))
        source, target = (b.bitcast(each, word.as_pointer()) for each in (source, target))
        with b.if_else(_is_there(e, number, values)) as (there, nowhere):
            with there:
                copy_elements(e, source, target, row_bytes // size)
            with nowhere, e.loop(e.int64(0), e.int64(row_bytes // size)) as index:
                # Of floats, no number.
                b.store(ir.Constant(word, -1), e.at(target, index))

    arguments = {"numbers": I64, "output": I8, "num_rows": None, "stride": None, "table": I8}
    return RowKernel(recipe, arguments, emit_row)


def _is_there(e: Emitter, number: ir.Value, values: Values) -> ir.Value:
    """Whether there is such a row: when a kernel is run again, nobody else has looked."""
    return e.builder.icmp_unsigned("<", number, values["num_rows"])


def _form_of(table: GroupInt | Codebook) -> _Form | None:
    """None for what the definition makes: tables that hardly any checkpoint has."""
    tables = tables_of(table)
    types = {name: str(each.dtype).removeprefix("torch.") for name, each in tables.items()}
    kept = (table.codes, *tables.values())
    if not _TYPES.keys() >= set(types.values()) or not all(map(torch.Tensor.is_contiguous, kept)):
        return None
    if table.group_size % LANES or (isinstance(table, GroupInt) and table.input_groups is not None):
        return None
    num_groups = table.shape[1] // table.group_size
    shared = tuple(_Table(k, types[k], num_groups // each.shape[1]) for k, each in tables.items())
    form = _Form(str(table.dtype).removeprefix("torch."), 4, None, 0, table.group_size, shared)
    if isinstance(table, Codebook):
        return form._replace(entries=table.table)
    return form._replace(bits=table.bits, centre=table.centre)


@per_isa
def _compile(recipe: Recipe, form: _Form) -> RowKernel:
    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        number = b.load(e.at(values["numbers"], row))
        is_there = _is_there(e, number, values)
        # Numbers of no row are none.
        factor = b.select(is_there, ir.Constant(F32, 1.0), ir.Constant(F32, float("nan")))
        number = b.select(is_there, number, e.int64(0))
        num_groups, size = values["num_groups"], e.int64(form.group_size)
        num_inputs = b.mul(num_groups, size)
        source, target = (b.mul(each, num_inputs) for each in (number, row))
        with e.loop(e.int64(0), num_groups) as group:
            own = _Group(e, form, values, (number, group), factor)
            begin = b.mul(group, size)
            end = b.add(begin, size)
            with e.loop(begin, end, LANES) as place:
                value = own.scaled(_decoded(e, form, values["codes"], b.add(source, place)))
                store_elements(e, value, e.at(values["output"], b.add(target, place)), form.dtype)

    arguments = {"numbers": I64, "output": ELEMENT_TYPES[form.dtype]}
    arguments |= {"num_rows": None, "num_groups": None, "codes": I8}
    arguments |= {each.name: _TYPES[each.dtype] for each in form.tables}
    return RowKernel(recipe, arguments, emit_row)


class _Group:
    """A group of a row: what becomes of its codes."""

    def __init__(
        self,
        e: Emitter,
        form: _Form,
        values: Values,
        place: tuple[ir.Value, ir.Value],
        factor: ir.Value,
    ) -> None:
        """`place` is its row and group; its scale is multiplied by a factor, which is 1 or none."""
        self._e, self._values = e, values
        self._number, self._group = place
        self._tables = {each.name: each for each in form.tables}
        scale = self._product("scales", "scale_units")
        assert scale is not None
        self._scale = e.broadcast(e.builder.fmul(scale, factor))
        minimum = self._product("minimums", "minimum_units")
        self._minimum = None if minimum is None else e.broadcast(minimum)
        zero = self._float("zero_points")
        self._zero = e.splat(float(form.centre)) if zero is None else e.broadcast(zero)

    def scaled(self, value: ir.Value) -> ir.Value:
        """As the definition has it, operation after operation."""
        b = self._e.builder
        value = b.fmul(b.fsub(value, self._zero), self._scale)
        return value if self._minimum is None else b.fsub(value, self._minimum)

    def _product(self, name: str, unit_name: str) -> ir.Value | None:
        value, unit = self._float(name), self._float(unit_name)
        if value is None or unit is None:
            return value
        return self._e.builder.fmul(value, unit)

    def _float(self, name: str) -> ir.Value | None:
        e, b = self._e, self._e.builder
        table = self._tables.get(name)
        if table is None:
            return None
        shared = e.int64(table.num_groups)
        per_row = b.sdiv(self._values["num_groups"], shared)
        place = b.add(b.mul(self._number, per_row), b.sdiv(self._group, shared))
        address = e.at(self._values[name], place)
        if table.dtype in _NUMBERS:
            return load_element(e, address, table.dtype)
        widen = b.zext if table.dtype == "uint8" else b.sext
        return b.sitofp(widen(b.load(address), I32), F32)


def _decoded(e: Emitter, form: _Form, codes: ir.Value, place: ir.Value) -> ir.Value:
    """What 16 codes stand for, before they are scaled."""
    b = e.builder
    if form.bits == 8:
        whole = b.zext(_bytes(e, e.at(codes, place), LANES), VEC_I32)
        return b.sitofp(whole, VEC)
    half = _bytes(e, e.at(codes, b.sdiv(place, e.int64(2))), LANES // 2)
    pairs = b.zext(half, ir.VectorType(I32, LANES // 2))
    both = e.shuffle(pairs, pairs, [lane // 2 for lane in range(LANES)])
    moved = b.lshr(both, ir.Constant(VEC_I32, [4 * (lane % 2) for lane in range(LANES)]))
    places = b.and_(moved, int_lanes(15))
    if form.entries is None:
        return b.sitofp(places, VEC)
    if has_avx512():
        table = ir.Constant(VEC, list(form.entries))
        return e.intrinsic("llvm.x86.avx512.permvar.sf.512", VEC, table, places)
    return looked_up(e, form.entries, places)


def _bytes(e: Emitter, address: ir.Value, number: int) -> ir.Value:
    read = e.builder.load(e.builder.bitcast(address, ir.VectorType(I8, number).as_pointer()))
    read.align = 1
    return read
