"""Paged attention as vector code for the CPU: keys and values are read where they lie.

Online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867; FlashAttention, Dao et
al. 2022, https://arxiv.org/abs/2205.14135) over tiles of 16 to 64 keys. A tile begins at a multiple of
its size, whatever the block size, and everything about a query row is computed in one order of its
own: its result is the same bits alone or in a batch, as a decode or in a chunk of a prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.compiled import kernel
from pagemesh.kernels.jit.elements import (
    store_element,
    store_elements,
)
from pagemesh.kernels.jit.emit import F32, I32, I64, LANES, VEC, Emitter, take_items
from pagemesh.kernels.jit.vector_math import exp, max_each, maximum, sum_lanes
from pagemesh.kernels.paged_attention.cpu_amx_tile import AmxTile
from pagemesh.kernels.paged_attention.cpu_floats import TileFloats
from pagemesh.kernels.paged_attention.cpu_pairs import TilePairs
from pagemesh.kernels.paged_attention.cpu_scales import TileScales
from pagemesh.kernels.paged_attention.cpu_tile import (
    ITEM,
    ROWS,
    KernelShape,
    Multiplies,
    Tile,
    TileSlots,
    Values,
    read_arguments,
)
from pagemesh.kernels.paged_attention.cpu_vector_tile import VectorTile

_LEAST = -1e30  # below every score


@kernel("attend")
def compile_attention(e: Emitter, shape: KernelShape) -> None:
    """Machine code; some tenths of a second of work."""
    _Kernel(e, shape).emit()


class _Kernel:
    """Emits the function; methods follow the order of the computation."""

    def __init__(self, e: Emitter, shape: KernelShape) -> None:
        self.shape = shape
        self.e, self.b = e, e.builder
        self.width = shape.width
        self.argument = read_arguments(e, shape)
        self.sums = e.scratch(shape.max_rows * shape.width)
        self.greatest = e.scratch(shape.max_rows)
        self.totals = e.scratch(shape.max_rows * LANES)
        self.positions = e.scratch(shape.max_rows)
        self.row_slopes = e.scratch(shape.max_rows)
        self.slots = TileSlots(e, shape, self.argument)
        self.scales = TileScales(e, shape, self.argument)
        self.tile: Tile = _make_tile(
            e, shape, self.argument, self._float_argument("scale"), self.sums
        )

    def emit(self) -> None:
        """Take items until none is left; always one ahead, to have its first keys fetched."""
        e, b = self.e, self.b
        num_items = self.argument["num_items"]
        start, head, work, done = (
            b.append_basic_block(name) for name in ("start", "head", "work", "done")
        )
        first = take_items(self.e)
        b.cbranch(b.icmp_signed("<", first, num_items), start, done)
        b.position_at_end(start)
        self._find(first, self._read_item(first)["first_tile"])
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(first, before)
        b.cbranch(b.icmp_signed("<", index, num_items), work, done)
        b.position_at_end(work)
        following = take_items(self.e)
        last = b.sub(num_items, e.int64(1))
        self._item(index, b.select(b.icmp_signed("<", following, last), following, last))
        index.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)
        self.tile.close()
        b.ret_void()

    def _read_item(self, index: ir.Value) -> dict[str, ir.Value]:
        e, b = self.e, self.b
        begin = b.mul(index, e.int64(len(ITEM)))
        return {
            name: b.load(e.at(self.argument["items"], b.add(begin, e.int64(offset))))
            for offset, name in enumerate(ITEM)
        }

    def _find(self, index: ir.Value, tile: ir.Value) -> None:
        first_key = self.b.mul(tile, self.e.int64(self.shape.num_keys))
        self.slots.find(self._read_item(index), first_key)

    def _item(self, index: ir.Value, following: ir.Value) -> None:
        e, b, num_keys = self.e, self.b, self.shape.num_keys
        item = self._read_item(index)
        num_rows = b.mul(item["num_queries"], e.int64(self.shape.num_groups))
        padded = b.and_(b.add(num_rows, e.int64(ROWS - 1)), e.int64(-ROWS))
        self._read_queries(item, num_rows, padded)
        self.scales.begin(item)
        end_tile = b.sdiv(b.add(item["end"], e.int64(num_keys - 1)), e.int64(num_keys))
        next_first_tile = self._read_item(following)["first_tile"]
        with e.loop(item["first_tile"], end_tile) as tile:
            self.slots.take()
            next_tile = b.add(tile, e.int64(1))
            is_own = b.icmp_signed("<", next_tile, end_tile)
            self._find(
                b.select(is_own, index, following), b.select(is_own, next_tile, next_first_tile)
            )
            self.tile.read(self.slots)
            self.scales.read(self.slots)
            first_key = b.mul(tile, e.int64(num_keys))
            with e.loop(e.int64(0), padded, self.shape.rows_at_once) as row:
                end_row = b.add(row, e.int64(self.shape.rows_at_once))
                end_row = b.select(b.icmp_signed("<", end_row, padded), end_row, padded)
                # Rows are in order of position: what the last one does not see yet, none does.
                last = b.load(e.at(self.positions, b.sub(end_row, e.int64(1))))
                if not self.shape.causal:
                    last = b.fadd(last, b.sitofp(self.argument["window"], F32))
                with b.if_then(b.fcmp_ordered("<=", b.sitofp(first_key, F32), last)):
                    num_together = b.sub(end_row, row)
                    self.tile.multiply_keys(row, num_together)
                    with e.loop(row, end_row, ROWS) as first:
                        self._attend_tile(first, first_key, item["end"])
                    self.tile.multiply_values(row, num_together)
        self._write_rows(item, num_rows)

    def _read_queries(
        self, item: dict[str, ir.Value], num_rows: ir.Value, padded: ir.Value
    ) -> None:
        """Queries, positions and slopes of the rows; padding repeats the last row."""
        e, b, shape = self.e, self.b, self.shape
        groups = shape.num_groups
        zero, one = ir.Constant(VEC, [0.0] * LANES), e.int64(1)
        first_head = b.mul(item["kv_head"], e.int64(groups))
        with e.loop(e.int64(0), padded) as row:
            target = b.mul(row, e.int64(self.width))
            for offset in range(0, self.width, LANES):
                place = b.add(target, e.int64(offset))
                e.store(zero, e.at(self.sums, place), 64)
            e.store(zero, e.at(self.totals, b.mul(row, e.int64(LANES))), 64)
            b.store(ir.Constant(F32, _LEAST), e.at(self.greatest, row))
            is_real = b.icmp_signed("<", row, num_rows)
            source_row = b.select(is_real, row, b.sub(num_rows, one))
            query = b.sdiv(source_row, e.int64(groups))
            position = b.sitofp(b.add(item["first_position"], query), F32)
            b.store(position, e.at(self.positions, row))
            head = b.add(first_head, b.srem(source_row, e.int64(groups)))
            b.store(b.load(e.at(self.argument["slopes"], head)), e.at(self.row_slopes, row))
            token = b.mul(b.add(item["first_row"], query), self.argument["query_stride"])
            source = b.add(token, b.mul(head, e.int64(self.shape.head_dim)))
            self.tile.read_query(row, source)

    def _attend_tile(self, row: ir.Value, first_key: ir.Value, end: ir.Value) -> None:
        """One tile's share of the softmax of four rows."""
        e, b = self.e, self.b
        first = e.broadcast(b.sitofp(first_key, F32))
        positions = [
            b.fadd(first, ir.Constant(VEC, list(range(offset, offset + LANES))))
            for offset in range(0, self.shape.num_keys, LANES)
        ]
        scores: list[list[ir.Value]] = []
        seen: list[list[ir.Value]] = []
        for index, products in enumerate(self.scales.scored(self.tile.scores(row))):
            own = e.broadcast(b.load(e.at(self.positions, b.add(row, e.int64(index)))))
            slope = e.broadcast(b.load(e.at(self.row_slopes, b.add(row, e.int64(index)))))
            distances = [b.fsub(keys, own) for keys in positions]  # 0 for itself, negative before
            masks = [self._is_seen(*each, end) for each in zip(positions, distances, strict=True)]
            seen.append(masks)
            scores.append(
                [
                    self._score(product, slope, distance, mask)
                    for product, distance, mask in zip(products, distances, masks, strict=True)
                ]
            )
        before, greatest = self._raise_greatest(row, scores)
        corrections = exp(e, b.fsub(before, greatest))
        by_row = [e.lane(corrections, index) for index in range(ROWS)]
        weights = []
        for index in range(ROWS):
            own = e.lane(greatest, index)
            of_row = [
                b.select(mask, exp(e, b.fsub(score, own)), e.splat(0.0))
                for score, mask in zip(scores[index], seen[index], strict=True)
            ]
            weights.append(of_row)
            address = e.at(self.totals, b.mul(b.add(row, e.int64(index)), e.int64(LANES)))
            total = functools.reduce(b.fadd, of_row)
            e.store(e.fma(e.load(address, 64), by_row[index], total), address, 64)
        self.tile.add_values(row, self.scales.weighted(weights), by_row)

    def _score(
        self, product: ir.Value, slope: ir.Value, distance: ir.Value, is_seen: ir.Value
    ) -> ir.Value:
        score = self._capped(product) if self.shape.caps else product
        score = self.e.fma(slope, distance, score)
        return self.b.select(is_seen, score, self.e.splat(float("-inf")))

    def _is_seen(self, position: ir.Value, distance: ir.Value, end: ir.Value) -> ir.Value:
        e, b = self.e, self.b
        window = e.broadcast(b.sitofp(b.neg(self.argument["window"]), F32))
        is_not_before = b.fcmp_ordered(">", distance, window)
        return b.and_(self._is_not_behind(position, distance, end), is_not_before)

    def _is_not_behind(
        self, key_positions: ir.Value, distance: ir.Value, end: ir.Value
    ) -> ir.Value:
        """Whether keys are in front of the first that a query does not see any more."""
        e, b = self.e, self.b
        if self.shape.causal:
            return b.fcmp_ordered("<=", distance, e.splat(0.0))
        window = e.broadcast(b.sitofp(self.argument["window"], F32))
        return b.and_(
            b.fcmp_ordered("<", distance, window),
            b.fcmp_ordered("<", key_positions, e.broadcast(b.sitofp(end, F32))),
        )

    def _raise_greatest(
        self, row: ir.Value, scores: Sequence[Sequence[ir.Value]]
    ) -> tuple[ir.Value, ir.Value]:
        """Greatest scores of four rows before and after this tile, in lanes 0 to 3 and so on."""
        e, b = self.e, self.b
        four = ir.VectorType(F32, ROWS)
        address = b.bitcast(e.at(self.greatest, row), four.as_pointer())
        loaded = b.load(address)
        loaded.align = 16
        lanes = [lane % ROWS for lane in range(LANES)]
        before = e.shuffle(loaded, loaded, lanes)
        take_greater = functools.partial(maximum, e)
        of_rows = [functools.reduce(take_greater, vectors) for vectors in scores]
        greatest = maximum(e, before, max_each(e, of_rows))
        e.store(e.shuffle(greatest, greatest, range(ROWS)), e.at(self.greatest, row), 16)
        return before, greatest

    def _capped(self, scores: ir.Value) -> ir.Value:
        """cap · tanh(scores / cap), tanh x = 1 - 2 / (e^2x + 1)."""
        e, b = self.e, self.b
        cap = e.broadcast(self._float_argument("soft_cap"))
        doubled = b.fmul(b.fdiv(scores, cap), e.splat(2.0))
        power = exp(e, e.call("llvm.minnum", doubled, e.splat(88.0)))
        tanh = b.fsub(e.splat(1.0), b.fdiv(e.splat(2.0), b.fadd(power, e.splat(1.0))))
        return b.fmul(cap, tanh)

    def _write_rows(self, item: dict[str, ir.Value], num_rows: ir.Value) -> None:
        """Divide by the sum of the weights, the sink's included, and round to the tensor's type."""
        e, b, shape = self.e, self.b, self.shape
        groups = e.int64(shape.num_groups)
        first_head = b.mul(item["kv_head"], groups)
        with e.loop(e.int64(0), num_rows) as row:
            head = b.add(first_head, b.srem(row, groups))
            sink = b.load(e.at(self.argument["sinks"], head))
            before = b.load(e.at(self.greatest, row))
            greatest = maximum(e, before, sink)
            total = sum_lanes(e, e.load(e.at(self.totals, b.mul(row, e.int64(LANES))), 64))
            own = exp(e, e.broadcast(b.fsub(before, greatest)))
            sinks = exp(e, e.broadcast(b.fsub(sink, greatest)))
            is_sink = b.fcmp_ordered(">", e.broadcast(sink), e.splat(_LEAST))
            sinks = b.select(is_sink, sinks, e.splat(0.0))
            factor = self.scales.summed(b.fdiv(own, e.fma(total, own, sinks)))
            token = b.add(item["first_row"], b.sdiv(row, groups))
            target = b.mul(
                b.add(b.mul(token, e.int64(shape.num_kv_heads * shape.num_groups)), head),
                e.int64(shape.head_dim),
            )
            self._narrow(b.mul(row, e.int64(self.width)), target, factor)

    def _narrow(self, source: ir.Value, target: ir.Value, factor: ir.Value) -> None:
        e, b, shape = self.e, self.b, self.shape
        num_whole = shape.head_dim // LANES * LANES
        for offset in range(0, num_whole, LANES):
            vector = e.load(e.at(self.sums, b.add(source, e.int64(offset))), 64)
            place = e.at(self.argument["output"], b.add(target, e.int64(offset)))
            store_elements(e, b.fmul(vector, factor), place, shape.dtype)
        if num_whole < shape.head_dim:
            scalar = b.extract_element(factor, ir.Constant(I32, 0))
            with e.loop(e.int64(num_whole), e.int64(shape.head_dim)) as offset:
                value = b.load(e.at(self.sums, b.add(source, offset)))
                place = e.at(self.argument["output"], b.add(target, offset))
                store_element(e, b.fmul(value, scalar), place, shape.dtype)

    def _float_argument(self, name: str) -> ir.Value:
        return self.b.bitcast(self.b.trunc(self.argument[name], I32), F32)


def _make_tile(
    e: Emitter, shape: KernelShape, arguments: Values, scale: ir.Value, sums: ir.Value
) -> Tile:
    if shape.multiplies == Multiplies.FLOATS:
        return VectorTile(e, shape, TileFloats(e, shape, arguments), scale, sums)
    pairs = TilePairs(e, shape, arguments)
    if shape.multiplies == Multiplies.AMX_TILES:
        return AmxTile(e, shape, pairs, scale, sums)
    return VectorTile(e, shape, pairs, scale, sums)
