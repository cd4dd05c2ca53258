"""Squares of 16 × 16 numbers of 32 bits, in registers, with their columns as rows."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.emit import LANES, Emitter


def transposed(e: Emitter, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """16 vectors of 16 lanes: lane m of vector n becomes lane n of vector m.

    Squares of half the size change places until they are single numbers: 64 instructions.
    """
    found = list(rows)
    size = LANES // 2
    while size:
        for first in range(LANES):
            if first & size:
                continue
            upper, lower = found[first], found[first + size]
            lanes = range(LANES)
            # Of the upper rows, the right-hand squares go down; of the lower ones, the left-hand squares up.
            found[first] = e.shuffle(
                upper, lower, [lane if not lane & size else LANES + lane - size for lane in lanes]
            )
            found[first + size] = e.shuffle(
                upper, lower, [lane + size if not lane & size else LANES + lane for lane in lanes]
            )
        size //= 2
    return found
