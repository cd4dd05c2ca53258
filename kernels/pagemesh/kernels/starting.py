"""Starts what Triton has compiled without asking Triton each time which of its variants is meant.

A variant is for the types of a start's arguments and for what is known of them: that a number is 1 or a multiple of 16,
that an address is one. Triton finds that out anew for each start, in more time than the driver needs to start it, and a
step of a prompt is some hundred starts. Here it is looked up by the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

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
