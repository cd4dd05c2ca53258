"""The classes of processors that kernels are made for, and which of them this process uses.

A class is settled once, before a model is loaded. A better one than the processor has is never used; a
lesser one may be, for tests and for meshes whose machines differ.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Concatenate, Final, NewType, ParamSpec, TypeVar

import llvmlite.binding as llvm

Recipe = NewType("Recipe", str)
"""Names all that a kernel's code follows from but for the sources and the processor: who compiles it, of what, for which
class."""

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SYS_ARCH_PRCTL: Final = 158
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_XFEATURE_XTILEDATA: Final = 18


class CpuIsa(StrEnum):
    """A class of processors, by what it multiplies with."""

    GENERIC = "generic"
    """What LLVM makes of 16 floats on any processor."""
    NEON = "neon"
    NEON_BF16 = "neon_bf16"
    AVX2 = "avx2"
    AVX512 = "avx512"
    AVX512_BF16 = "avx512_bf16"
    AMX = "amx"

    @property
    def has_pair_dots(self) -> bool:
        """Whether an instruction adds the products of a pair of bfloat16 to a sum."""
        return self in (CpuIsa.AVX512_BF16, CpuIsa.AMX, CpuIsa.NEON_BF16)


_AVX512: Final = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")

_NEEDS: Final[dict[CpuIsa, tuple[str, ...]]] = {
    CpuIsa.AMX: (*_AVX512, "avx512bf16", "amx-tile", "amx-bf16"),
    CpuIsa.AVX512_BF16: (*_AVX512, "avx512bf16"),
    CpuIsa.AVX512: _AVX512,
    CpuIsa.AVX2: ("avx2", "fma"),
    CpuIsa.NEON_BF16: ("neon", "bf16"),
    CpuIsa.NEON: ("neon",),
    CpuIsa.GENERIC: (),
}
"""LLVM's names of what a class's code uses, the best class first."""

_WITHOUT: Final[dict[CpuIsa, str]] = {
    CpuIsa.AVX512: "-avx512bf16,-avx512fp16,-amx-tile",
    CpuIsa.AVX2: "-avx512f,-amx-tile",
}
"""What LLVM must not use for a class although the processor has it: the rest goes with it."""


def processor_isas() -> tuple[CpuIsa, ...]:
    """What this processor has, the best first; AMX also where Linux may refuse it."""
    return tuple(isa for isa, needs in _NEEDS.items() if all(map(has_feature, needs)))


def has_feature(name: str) -> bool:
    """Whether this processor has a feature, by LLVM's name of it."""
    try:
        return processor_features().get(name, False)
    except RuntimeError:  # LLVM does not know the processor
        return False


@functools.cache
def processor_features() -> Mapping[str, bool]:
    """All features that LLVM knows, with whether this processor has them; RuntimeError where it knows no processor."""
    # Kernels ask for each of their instructions, and LLVM takes a quarter of a millisecond.
    features: Mapping[str, bool] = llvm.get_host_cpu_features()
    return features


def current_isa() -> CpuIsa:
    """The class that kernels are compiled for."""
    return _chosen[-1] if _chosen else best_isa()


def has_avx512() -> bool:
    """Whether kernels may use its instructions: of a better class that a test plays the processor may have none."""
    classes = (CpuIsa.AVX512, CpuIsa.AVX512_BF16, CpuIsa.AMX)
    return current_isa() in classes and CpuIsa.AVX512 in processor_isas()


def has_byte_permutes() -> bool:
    """Likewise, whether they may take bytes of a vector in any order (AVX512-VBMI)."""
    return has_avx512() and has_feature("avx512vbmi")


@functools.cache
def best_isa() -> CpuIsa:
    """The best class that this process may use."""
    first, *others = processor_isas()
    return first if first != CpuIsa.AMX or may_use_tiles() else others[0]


def settle_isa(isa: CpuIsa) -> None:
    """Compile all kernels for this class from now on; the processor must have it."""
    _chosen[:] = [isa]


@contextmanager
def using_isa(isa: CpuIsa) -> Iterator[None]:
    """Whatever is made meanwhile is of this class; for tests."""
    before = list(_chosen)
    settle_isa(isa)
    try:
        yield
    finally:
        _chosen[:] = before


_chosen: Final[list[CpuIsa]] = []


def features_without_better(isa: CpuIsa) -> str:
    """The features of this processor, in LLVM's words, that code of a class may use."""
    features = ",".join(
        f"{'+' if has else '-'}{name}" for name, has in sorted(processor_features().items())
    )
    without = _WITHOUT.get(isa, "")
    return f"{features},{without}" if without else features


def per_isa(compile_kernel: Callable[Concatenate[Recipe, _P], _T]) -> Callable[_P, _T]:
    """Calls with the same arguments give the same kernel, one for each class.

    What an argument's `repr` says is all of it that the code follows from, in every process.
    """
    caches: dict[CpuIsa, Callable[..., _T]] = {}
    name = f"{compile_kernel.__module__}.{compile_kernel.__qualname__}"

    def compiled(isa: CpuIsa, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        recipe = Recipe(f"{name} {args!r} {sorted(kwargs.items())!r} {isa}")
        return compile_kernel(recipe, *args, **kwargs)

    def for_current(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        isa = current_isa()
        if isa not in caches:
            caches[isa] = functools.cache(functools.partial(compiled, isa))
        return caches[isa](*args, **kwargs)

    return for_current


@functools.cache
def may_use_tiles() -> bool:
    """Ask Linux for AMX's tile registers; every thread of the process has them from then on.

    It says no where a thread's alternate signal stack is too small for the larger frame, and some
    sandboxes refuse the question: a no is an answer to live with.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
