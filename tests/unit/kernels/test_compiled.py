"""What LLVM refuses becomes a named error."""

from __future__ import annotations

import pytest
from llvmlite import ir

from pagemesh.errors import InternalError
from pagemesh.kernels.jit import cpu_isa
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas


def empty_function() -> tuple[ir.Module, ir.IRBuilder]:
    module = ir.Module("kernels")
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
    function = ir.Function(module, kind, "work")
    return module, ir.IRBuilder(function.append_basic_block())


def test_a_kernel_that_llvm_refuses_is_named_with_its_processor_and_the_reason() -> None:
    module, _ = empty_function()
    with pytest.raises(
        InternalError, match=r"(?s)the kernel 'work' .* \(.+\): .*expected instr"
    ) as raised:
        CompiledFunction(module, "work")
    assert raised.value.reason == "KERNEL_NOT_COMPILED"


def test_a_processor_that_llvm_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> object:
        raise RuntimeError("no target for this machine")

    module, builder = empty_function()
    builder.ret_void()
    works = CompiledFunction(module, "work")
    works.call(None)
    monkeypatch.setattr(cpu_isa, "processor_features", unknown)
    with pytest.raises(InternalError, match=r"'work' cannot be compiled .* no target for this"):
        CompiledFunction(module, "work")
    assert processor_isas() == (CpuIsa.GENERIC,)
