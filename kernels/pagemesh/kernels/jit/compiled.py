"""Machine code for this processor, of the class that is settled."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from pagemesh.errors import InternalError
from pagemesh.kernels.jit.cpu_isa import Recipe, current_isa, features_without_better, per_isa
from pagemesh.kernels.jit.emit import Emitter
from pagemesh.kernels.jit.object_cache import find, keep, kernel_sources, key_of

_P = ParamSpec("_P")

# Without it LLVM splits 512-bit vectors on processors that once were slow with them.
_ATTRIBUTES = '"min-legal-vector-width"="512" "prefer-vector-width"="512"'


class CompiledFunction:
    """A function `void(void*)` in memory; lives as long as this object."""

    def __init__(self, recipe: Recipe | None, name: str, emit: Callable[[Emitter], None]) -> None:
        """Compile what `emit` writes, which it is not asked for where code of the recipe is kept.

        InternalError (KERNEL_NOT_COMPILED) when LLVM cannot, with its reason.
        """
        try:
            self._engine = _load(recipe, lambda: _text(name, emit))
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


def kernel(
    name: str,
) -> Callable[[Callable[Concatenate[Emitter, _P], None]], Callable[_P, CompiledFunction]]:
    """Makes of what emits a function with this name what compiles it, once for the same arguments and each class."""

    def decorate(emit: Callable[Concatenate[Emitter, _P], None]) -> Callable[_P, CompiledFunction]:
        def compiled(recipe: Recipe, /, *args: _P.args, **kwargs: _P.kwargs) -> CompiledFunction:
            return CompiledFunction(recipe, name, lambda e: emit(e, *args, **kwargs))

        # Recipes name who emits.
        functools.update_wrapper(compiled, emit)
        return per_isa(compiled)

    return decorate


def _text(name: str, emit: Callable[[Emitter], None]) -> str:
    module = ir.Module("kernel")
    emit(Emitter(module, name))
    return str(module)


def _load(recipe: Recipe | None, write: Callable[[], str]) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    processor, features = llvm.get_host_cpu_name(), features_without_better(current_isa())
    # One for each module: the engine that runs the code takes it over.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor, features=features, opt=3
    )
    target = (processor, features, machine.triple, _versions())
    code = _find_or_make(recipe, write, machine, target)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _find_or_make(
    recipe: Recipe | None,
    write: Callable[[], str],
    machine: llvm.TargetMachine,
    target: tuple[str, ...],
) -> bytes:
    """An object file: by its recipe, which takes no writing of LLVM's language, or by what is written."""
    sources = kernel_sources()
    pointer = key_of(recipe, sources, *target) if recipe and sources else None
    key = find(pointer) if pointer else None
    code = find(key.decode()) if key else None
    if code is not None:
        return code
    text = write()
    name = key_of(text, *target)
    code = find(name)
    if code is None:
        code = _make_code(text, machine)
        keep(name, code)
    if pointer:
        keep(pointer, name.encode())
    return code


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
