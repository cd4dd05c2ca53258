"""A thin layer over llvmlite's builder for kernels of 16-lane float vectors and counted loops.

Nothing is reordered or contracted behind the kernel's back: a sum is added in the order in which it is
written, and `fma` is one rounding, so that results are the same bits on every processor that runs
them, however many rows a call has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

LANES = 16
"""Floats in a vector: one AVX-512 register, or two or four smaller ones."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
VEC = ir.VectorType(F32, LANES)
VEC_I32 = ir.VectorType(I32, LANES)


class Emitter:
    """Emits the body of one function `void(i8*)`."""

    def __init__(self, module: ir.Module, name: str) -> None:
        pointer = I8.as_pointer()
        self._module = module
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), name)
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self._entry)

    def int64(self, value: int) -> ir.Constant:
        """A constant."""
        return ir.Constant(I64, value)

    def splat(self, value: float) -> ir.Constant:
        """A constant in all lanes."""
        return ir.Constant(VEC, [value] * LANES)

    def broadcast(self, scalar: ir.Value, vector_type: ir.VectorType = VEC) -> ir.Value:
        """A scalar in all lanes."""
        empty = ir.Constant(vector_type, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, ir.Constant(I32, 0))
        lanes = ir.Constant(VEC_I32, [0] * LANES)
        return self.builder.shuffle_vector(first, empty, lanes)

    def scratch(self, num_elements: int, element: ir.Type = F32) -> ir.Value:
        """Memory of this call, aligned for vectors."""
        with self.builder.goto_entry_block():
            array = self.builder.alloca(element, num_elements)
        array.align = 64
        return array

    def at(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """Address of an element."""
        return self.builder.gep(base, [index])

    def argument(self, index: int, pointer_to: ir.Type | None = None) -> ir.Value:
        """The index-th 64-bit argument, an integer unless it points to something."""
        arguments = self.builder.bitcast(self.function.args[0], I64.as_pointer())
        value = self.builder.load(self.at(arguments, self.int64(index)))
        if pointer_to is None:
            return value
        return self.builder.inttoptr(value, pointer_to.as_pointer())

    def load(self, address: ir.Value, align: int = 4) -> ir.Value:
        """16 floats."""
        vector = self.builder.load(self.builder.bitcast(address, VEC.as_pointer()))
        vector.align = align
        return vector

    def store(self, vector: ir.Value, address: ir.Value, align: int = 4) -> None:
        """Write a vector."""
        instruction = self.builder.store(
            vector, self.builder.bitcast(address, vector.type.as_pointer())
        )
        instruction.align = align

    @contextmanager
    def loop(self, begin: ir.Value, end: ir.Value, step: int = 1) -> Iterator[ir.Value]:
        """for index in range(begin, end, step)."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("head")
        body = builder.append_basic_block("body")
        after = builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(begin, before)
        builder.cbranch(builder.icmp_signed("<", index, end), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, self.int64(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    def intrinsic(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """What LLVM's intrinsic of that full name gives."""
        function = self._module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self._module, kind, name)
        return self.builder.call(function, arguments)

    def call(self, name: str, *arguments: ir.Value) -> ir.Value:
        """An LLVM intrinsic whose arguments and result have one type."""
        kind = arguments[0].type
        suffix = f"v{LANES}f32" if kind == VEC else "f32"
        return self.intrinsic(f"{name}.{suffix}", kind, *arguments)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x · y + z, rounded once."""
        return self.call("llvm.fma", x, y, z)

    def shuffle(self, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Lanes of x (0 to 15) and y (16 to 31)."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(x, y, mask)

    def lane(self, vector: ir.Value, index: int) -> ir.Value:
        """One lane in all lanes."""
        return self.shuffle(vector, vector, [index] * LANES)
