"""Kernels that start before the one in front of them has ended (programmatic dependent launch, CUDA C++ Programming
Guide; on Hopper and its successors).

A kernel that is launched with `overlaps` has its programs on the multiprocessors as soon as there is room, reads what
no kernel writes, and then waits until all that was asked for before it is done. So the time to start a kernel, and
that in which its predecessor's last programs leave multiprocessors idle, is not added to each of a decode's kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LINE_BYTES = tl.constexpr(128)


@triton.jit
def wait_for_earlier(EARLY: tl.constexpr):
    """Before anything is read that an earlier kernel may have written, and before anything is written.

    The next kernel may start meanwhile: it waits in turn.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def read_ahead(rows, begin, size, LINES: tl.constexpr, EARLY: tl.constexpr):
    """Bring the begin of each row of a weight into the second-level cache, while there is nothing else to do.

    `rows` [R] point to rows of `size` elements; read is from element `begin` on, LINES lines of the cache, a power
    of two.
    """
    if EARLY:
        LENGTH: tl.constexpr = _LINE_BYTES // (rows.dtype.element_ty.primitive_bitwidth // 8)
        column = tl.minimum(begin + tl.arange(0, LINES) * LENGTH, size - 1)
        places = (rows[:, None] + column[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [places],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
