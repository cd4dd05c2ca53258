"""Starts Triton kernels, or notes what would have been started.

Products and sums are never fused into one rounding, except where a kernel says so: a kernel is compiled
anew for every kind of argument (an integer that is 1 is a constant), and each time the compiler would
fuse as it likes, so that the same row might get other bits in another batch.

What Triton has compiled is started without asking Triton each time which of its variants is meant. A variant is for the
types of a start's arguments and for what is known of them: that a number is 1 or a multiple of 16, that an address is
one. Triton finds that out anew for each start, in more time than the driver needs to start it, and a step of a prompt is
some hundred starts. Here it is looked up by the same facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """Start a kernel with arguments by its own names, constants included.

    An empty grid starts nothing. Tensors are on the current device, whose current stream runs it. A kernel that
    `overlaps` is told by EARLY whether it has to wait for those before it, see `early_start`.
    """
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fuses}
    if overlaps:
        is_early = isinstance(kernel, JITFunction) and _starts_early(arguments)
        arguments = {**arguments, "EARLY": is_early}
        options["launch_pdl"] = is_early
    if _notes:
        _notes[-1].append(Launch(kernel, grid, dict(arguments), dict(options)))
    elif all(grid):
        start(kernel, grid, arguments, options)


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
    device = next(each.device for each in arguments.values() if isinstance(each, torch.Tensor))
    return target_of(device).capability >= _EARLY_CAPABILITY


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

_variants: dict[tuple[object, ...], Any] = {}
"""What was compiled, by all that it was compiled for."""
_parameters: dict[int, _Parameters] = {}


class _Parameters(NamedTuple):
    """Of a kernel."""

    names: tuple[str, ...]
    constants: tuple[str, ...]
    variables: tuple[tuple[int, bool], ...]
    """Of each other one its place, and whether variants differ by what its value is."""


def start(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, object],
    options: Mapping[str, int | bool],
) -> None:
    """Start a kernel on the current device's current stream, with arguments by its own names."""
    if not isinstance(kernel, JITFunction):
        kernel[grid](**arguments, **options)
        return
    device = driver.active.get_current_device()
    names, constants, variables = _parameters_of(kernel)
    values = [arguments[name] for name in names]
    variant: list[object] = [device, id(kernel), *options.values()]
    variant += [arguments[name] for name in constants]
    for place, is_special in variables:
        value = values[place]
        if value is None:
            variant.append(None)
        elif isinstance(value, int):
            is_long = value.bit_length() > _MOST_BITS
            variant.append((value == 1, value % _ALIGNED == 0, is_long) if is_special else is_long)
        elif isinstance(value, torch.Tensor):
            address = values[place] = value.data_ptr()
            variant.append(value.dtype)
            variant.append(address % _ALIGNED == 0)
        else:
            variant.append(value.__class__)
    key = tuple(variant)
    compiled = _variants.get(key)
    if compiled is None:
        _variants[key] = kernel[grid](**arguments, **options)
        return
    stream = driver.active.get_current_stream(device)
    x, y, z = (*grid, 1, 1)[:3]
    function, metadata = compiled.function, compiled.packed_metadata
    compiled.run(x, y, z, stream, function, metadata, None, None, None, *values)


def _parameters_of(kernel: JITFunction[Any]) -> _Parameters:
    # Not by the kernel itself, which hashes its code.
    found = _parameters.get(id(kernel))
    if found is not None:
        return found
    parameters = kernel.params
    _parameters[id(kernel)] = found = _Parameters(
        tuple(each.name for each in parameters),
        tuple(each.name for each in parameters if each.is_constexpr),
        tuple(
            (place, not each.do_not_specialize)
            for place, each in enumerate(parameters)
            if not each.is_constexpr
        ),
    )
    return found


# Triton's functions of these names, made to be called by kernels as well, take some microseconds each, and a step asks
# for hundreds.


def cdiv(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)


def next_power_of_2(number: int) -> int:
    """The least power of 2 that is not below a number above 0."""
    return 1 << (number - 1).bit_length()
