"""Sizes of grids and blocks. Triton's functions of these names, made to be called by kernels as well, take some
microseconds each, and a step asks for hundreds."""

from __future__ import annotations


def cdiv(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)


def next_power_of_2(number: int) -> int:
    """The least power of 2 that is not below a number above 0."""
    return 1 << (number - 1).bit_length()
