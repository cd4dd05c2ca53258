"""Machine code for this processor, of the class that is settled, from an LLVM module."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from pagemesh.errors import InternalError
from pagemesh.kernels.jit.cpu_isa import current_isa, features_without_better
from pagemesh.kernels.jit.object_cache import find_code, keep_code, key_of

# Without it LLVM splits 512-bit vectors on processors that once were slow with them.
_ATTRIBUTES = '"min-legal-vector-width"="512" "prefer-vector-width"="512"'


class CompiledFunction:
    """A function `void(void*)` in memory; lives as long as this object."""

    def __init__(self, module: ir.Module, name: str) -> None:
        """Compile; InternalError (KERNEL_NOT_COMPILED) when LLVM cannot, with its reason."""
        try:
            self._engine = _compile(str(module))
        except (RuntimeError, OSError) as error:
            # What llvmlite raises for all that LLVM refuses: a target, a processor, a module.
            raise InternalError(
                f"the kernel {name!r} cannot be compiled for this processor"
                f" ({llvm.get_host_cpu_name()}): {error}",
                reason="KERNEL_NOT_COMPILED",
            ) from error
        self.address: int = self._engine.get_function_address(name)
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
        """Run it on this thread, without the GIL."""


def _compile(text: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    processor, features = llvm.get_host_cpu_name(), features_without_better(current_isa())
    # One for each module: the engine that runs the code takes it over.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor, features=features, opt=3
    )
    key = key_of(text, processor, features, machine.triple, _versions())
    code = find_code(key)
    if code is None:
        code = _make_code(text, machine)
        keep_code(key, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _make_code(text: str, machine: llvm.TargetMachine) -> bytes:
    """An object file."""
    text = re.sub(r"^(define [^{\n]*?)\s*$", rf"\1 {_ATTRIBUTES}", text, flags=re.MULTILINE)
    module = llvm.parse_assembly(text)
    module.verify()
    _rotate_loops(module, machine)
    code: bytes = machine.emit_object(module)
    return code


@functools.cache
def _versions() -> str:
    """Of all that makes code of a text: LLVM, llvmlite and this file."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return f"{llvmlite.__version__} {llvm.llvm_version_info} {own}"


def _rotate_loops(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """All that LLVM shall change: the rest of its passes find nothing here, and take as long as making the code.

    Of a loop that tests at its end the code generator takes out what stays the same in it.
    """
    passes = llvm.create_new_module_pass_manager()
    passes.add_loop_rotate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
