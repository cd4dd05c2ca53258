"""Starts Triton kernels, or notes what would have been started.

Products and sums are never fused into one rounding, except where a kernel says so: a kernel is compiled
anew for every kind of argument (an integer that is 1 is a constant), and each time the compiler would
fuse as it likes, so that the same row might get other bits in another batch.

What Triton has compiled is started without asking Triton each time which of its variants is meant. A variant is for the
types of a start's arguments and for what is known of them: that a number is 1 or a multiple of 16, that an address is
one. Triton finds that out anew for each start, in more time than the driver needs to start it, and a step of a prompt is
some hundred starts. Here it is looked up by the same facts; those of what stays the same, weights and the sizes of
tiles, are found once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from pagemesh.kernels.target import target_of

_EARLY_CAPABILITY: Final = 90
"""From which on kernels can start early: Hopper's."""

_notes: list[list[Launch]] = []


class Launch(NamedTuple):
    """One start of a kernel."""

    kernel: Any
    """What `triton.jit` made."""

    grid: tuple[int, ...]
    """Programs in each direction."""

    arguments: Mapping[str, object]
    """By the kernel's own names, constants included."""

    options: Mapping[str, int | bool]
    """num_warps, num_stages, enable_fp_fusion, and launch_pdl of kernels that overlap."""


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    fuses: bool = False,
    overlaps: bool = False,
) -> None:
    """Start a kernel once, see `BoundKernel`."""
    # Not by the kernel itself, which hashes its code.
    key = id(kernel), num_warps, num_stages, fuses, overlaps
    bound = _unbound.get(key)
    if bound is None:
        bound = _unbound[key] = BoundKernel(
            kernel,
            {},
            num_warps=num_warps,
            num_stages=num_stages,
            fuses=fuses,
            overlaps=overlaps,
        )
    bound.start(grid, arguments)


class BoundKernel:
    """A kernel with all that stays the same from start to start."""

    def __init__(
        self,
        kernel: Any,
        fixed: Mapping[str, object],
        *,
        num_warps: int = 4,
        num_stages: int = 3,
        fuses: bool = False,
        overlaps: bool = False,
    ) -> None:
        """`fixed` are arguments by the kernel's own names, constants included.

        A kernel that `overlaps` is told by EARLY whether it has to wait for those before it, see `early_start`.
        """
        self._kernel = kernel
        self._fixed = fixed
        self._options: Mapping[str, int | bool] = {
            "num_warps": num_warps,
            "num_stages": num_stages,
            "enable_fp_fusion": fuses,
        }
        self._overlaps = overlaps
        self._is_compiled = isinstance(kernel, JITFunction)
        self._calls: dict[bool, _Call] = {}

    def start(self, grid: tuple[int, ...], arguments: Mapping[str, object]) -> None:
        """Start it with the rest of its arguments, of which one is a tensor.

        An empty grid starts nothing. Tensors are on the current device, whose current stream runs it.
        """
        is_early = self._overlaps and self._is_compiled and _starts_early(arguments)
        call = self._calls.get(is_early)
        if call is None:
            call = self._calls[is_early] = self._make_call(is_early=is_early)
        if _notes:
            everything = {**call.fixed, **arguments}
            _notes[-1].append(Launch(self._kernel, grid, everything, dict(call.options)))
        elif not all(grid):
            return
        elif self._is_compiled:
            _start_compiled(call, grid, arguments)
        else:
            self._kernel[grid](**call.fixed, **arguments, **call.options)

    def _make_call(self, *, is_early: bool) -> _Call:
        fixed, options = self._fixed, self._options
        if self._overlaps:
            fixed, options = {**fixed, "EARLY": is_early}, {**options, "launch_pdl": is_early}
        if not self._is_compiled:
            return _Call(self._kernel, fixed, options)
        parameters = [
            _Parameter(each.name, place, each.is_constexpr, not each.do_not_specialize)
            for place, each in enumerate(self._kernel.params)
        ]
        known = tuple(each for each in parameters if each.name in fixed)
        others = tuple(each for each in parameters if each.name not in fixed)
        values: list[object] = [None] * len(parameters)
        facts: list[object] = [self._kernel, *options.values(), *(each.name for each in known)]
        _look_at(known, fixed, values, facts)
        kind = _kinds.setdefault(tuple(facts), len(_kinds))
        return _Call(self._kernel, fixed, options, values, kind, others)


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Start nothing, but note what would be started; tensors may then be on torch's meta device."""
    notes: list[Launch] = []
    _notes.append(notes)
    try:
        yield notes
    finally:
        _notes.pop()


def _starts_early(arguments: Mapping[str, object]) -> bool:
    for each in arguments.values():
        if isinstance(each, torch.Tensor):
            return target_of(each.device).capability >= _EARLY_CAPABILITY
    raise ValueError(f"no tensor is among {', '.join(arguments)}")


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1), slowly, on tensors of the CPU."""
    return bool(triton.knobs.runtime.interpret)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which `tl.dot` should have operands that are stored as `dtype`.

    The interpreter takes bfloat16 for 16-bit integers: there it is float32.
    """
    if dtype == torch.int8:
        return tl.int8
    if dtype == torch.float8_e4m3fn:
        return tl.float8e4nv
    if is_interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


_ALIGNED: Final = 16
_MOST_BITS: Final = 31
"""Of a number that is passed in 32 bits."""

_compiled: dict[tuple[object, ...], Any] = {}
"""By all that it was compiled for."""
_unbound: dict[tuple[object, ...], BoundKernel] = {}
"""Kernels without fixed arguments, by themselves and their options."""
_kinds: dict[tuple[object, ...], int] = {}
"""Kernels with all that is known of their fixed arguments, numbered: layers of a model are alike."""


class _Parameter(NamedTuple):
    """Of a kernel."""

    name: str
    place: int
    is_constant: bool
    is_special: bool
    """Whether variants differ by what a number is."""


def _look_at(
    parameters: Sequence[_Parameter],
    arguments: Mapping[str, object],
    values: list[object],
    facts: list[object],
) -> None:
    """Add what is to be passed to the values, and to the facts what the compiler makes variants of."""
    for name, place, is_constant, is_special in parameters:
        value = values[place] = arguments[name]
        if isinstance(value, torch.Tensor):
            address = values[place] = value.data_ptr()
            facts.append(value.dtype)
            facts.append(address % _ALIGNED == 0)
        elif value is None or is_constant:
            facts.append(value)
        elif isinstance(value, int):
            is_long = value.bit_length() > _MOST_BITS
            facts.append((value == 1, value % _ALIGNED == 0, is_long) if is_special else is_long)
        else:
            facts.append(value.__class__)


class _Call(NamedTuple):
    """How a kernel with fixed arguments is called."""

    kernel: Any
    fixed: Mapping[str, object]
    options: Mapping[str, int | bool]

    values: Sequence[object] = ()
    """As what is compiled takes them, in the kernel's order; None in the places of the others."""

    kind: int = 0
    others: tuple[_Parameter, ...] = ()


def _start_compiled(call: _Call, grid: tuple[int, ...], arguments: Mapping[str, object]) -> None:
    gpu = driver.active
    device = gpu.get_current_device()
    values, facts = list(call.values), [device, call.kind]
    _look_at(call.others, arguments, values, facts)
    variant = tuple(facts)
    compiled = _compiled.get(variant)
    if compiled is None:
        _compiled[variant] = call.kernel[grid](**call.fixed, **arguments, **call.options)
        return
    x, y, z = (*grid, 1, 1)[:3]
    function, metadata = compiled.function, compiled.packed_metadata
    stream = gpu.get_current_stream(device)
    compiled.run(x, y, z, stream, function, metadata, None, None, None, *values)


# Triton's functions of these names, made to be called by kernels as well, take some microseconds each, and a step asks
# for hundreds.


def cdiv(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)


def next_power_of_2(number: int) -> int:
    """The least power of 2 that is not below a number above 0."""
    return 1 << (number - 1).bit_length()
