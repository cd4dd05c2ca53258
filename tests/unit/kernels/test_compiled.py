"""What LLVM refuses becomes a named error."""

from __future__ import annotations

import pytest

from pagemesh.errors import InternalError
from pagemesh.kernels.jit import cpu_isa
from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas
from pagemesh.kernels.jit.emit import Emitter


def unfinished(e: Emitter) -> None:
    """A block that leads nowhere."""


def finished(e: Emitter) -> None:
    e.builder.ret_void()


def test_a_kernel_that_llvm_refuses_is_named_with_its_processor_and_the_reason() -> None:
    with pytest.raises(
        InternalError, match=r"(?s)the kernel 'work' .* \(.+\): .*expected instr"
    ) as raised:
        CompiledFunction(None, "work", unfinished)
    assert raised.value.reason == "KERNEL_NOT_COMPILED"


def test_a_processor_that_llvm_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> object:
        raise RuntimeError("no target for this machine")

    works = CompiledFunction(None, "work", finished)
    works.call(None)
    monkeypatch.setattr(cpu_isa, "processor_features", unknown)
    with pytest.raises(InternalError, match=r"'work' cannot be compiled .* no target for this"):
        CompiledFunction(None, "work", finished)
    assert processor_isas() == (CpuIsa.GENERIC,)
