"""Codes of 4 and 8 bits out of the words of 32 bits that AWQ, GPTQ and compressed-tensors pack them into.

The first code of a word is in its lowest bits, and files are little-endian: the bytes of a word have codes of 8 bits,
and pairs of those of 4, in the order in which `GroupInt` keeps them.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.linear.packed import unpack_halves


def bytes_of_words(words: torch.Tensor) -> torch.Tensor:
    """int32 [..., n] → uint8 [..., 4 · n]."""
    return words.contiguous().view(torch.uint8)


def codes_of_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] → uint8 codes [..., n · 32 / bits]."""
    as_bytes = bytes_of_words(words)
    return as_bytes if bits == 8 else unpack_halves(as_bytes)
