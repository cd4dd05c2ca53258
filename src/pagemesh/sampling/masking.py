"""Leaves of each row's logits what its constraint allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pagemesh.errors import PagemeshError
from pagemesh.sampling.structured.constraint import TokenConstraint

ConstrainedRow = tuple[int, TokenConstraint, Sequence[int]]
"""Index of a row, its constraint, and tokens that it should avoid."""


def apply_constraints(
    logits: torch.Tensor, rows: Sequence[ConstrainedRow]
) -> dict[int, PagemeshError]:
    """Set what is not allowed to -inf in logits [R, vocab]; gives errors by the rows' indices.

    Row by row: for 32 rows of 128,000 tokens, the library's call for several rows takes 46 µs on two
    cores, and one call per row 67 µs.
    """
    vocab_size = logits.shape[-1]
    masks = np.zeros((len(rows), -(-vocab_size // 32)), dtype=np.int32)
    errors: dict[int, PagemeshError] = {}
    for mask, (index, constraint, avoid) in zip(masks, rows, strict=True):
        try:
            constraint.fill_mask(mask, avoid)
        except PagemeshError as error:
            errors[index] = error
            # Nothing is sampled from this row; left as it is, it is not taken for another failure.
            mask.fill(-1)
    bits = np.unpackbits((~masks).view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    forbidden = torch.from_numpy(bits.view(np.bool_)).to(logits.device)
    if len(rows) == len(logits):
        logits.masked_fill_(forbidden, -math.inf)
    else:
        indices = [index for index, _, _ in rows]
        logits[indices] = logits[indices].masked_fill_(forbidden, -math.inf)
    return errors
