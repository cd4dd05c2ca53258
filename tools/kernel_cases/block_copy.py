"""Blocks of Llama 3 8B: 32 KiB in each of 64 planes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pagemesh.kernels.block_copy import make_block_copier
from tools.kernel_cases.case import Case, meta


def cases() -> Iterator[Case]:
    """Out of a pool, into it, from one to another, and summed up where they are."""
    copier = make_block_copier(torch.device("meta"))
    pool, buffer = (meta(64, count, 4096, dtype=torch.int64) for count in (999, 8))
    ids = meta(8, dtype=torch.int64)
    yield Case("gather", partial(copier.gather, pool, ids, buffer))
    yield Case("scatter", partial(copier.scatter, buffer, pool, ids))
    yield Case("copy", partial(copier.copy, pool, ids, pool, ids))
    rows = meta(8, 64, 4096, dtype=torch.int64).transpose(0, 1)
    yield Case("copy to rows", partial(copier.copy, pool, ids, rows, ids))
    yield Case("copy and sum", partial(copier.copy_and_sum, pool, ids, pool, ids))
    yield Case("sum", partial(copier.sum, pool, ids))
