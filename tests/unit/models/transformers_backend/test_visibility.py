from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from pagemesh.models.transformers_backend.attention import UnservableError
from pagemesh.models.transformers_backend.visibility import MaskFunction, sliding_window_of


def test_a_causal_mask_has_no_window() -> None:
    assert sliding_window_of(causal_mask_function, None, 1000) is None


@pytest.mark.parametrize("window", [1, 2, 8, 333, 999])
def test_a_window_is_found(window: int) -> None:
    mask_function = sliding_window_causal_mask_function(window)
    assert sliding_window_of(mask_function, window, 1000) == window


def test_a_window_that_no_context_exceeds_is_none() -> None:
    assert sliding_window_of(sliding_window_causal_mask_function(1000), 1000, 1000) is None


def no_first_key(batch: int, head: int, query: int, key: int) -> bool:
    return key > 0 or query == 0


CHUNKS = chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("mask_function", "local_size", "message"),
    [
        (bidirectional_mask_function, None, "position 0 sees position 1"),
        (CHUNKS, 16, "position 16 does not see position 1$"),
        (and_masks(causal_mask_function, no_first_key), None, "position 1 does not see position 0"),
        (sliding_window_causal_mask_function(12), 13, "position 12 does not see position 0"),
        (sliding_window_causal_mask_function(14), 13, "position 13 sees position 0"),
    ],
    ids=["ahead", "chunks", "a hidden key", "a smaller window", "a larger window"],
)
def test_whatever_else_a_mask_shows_is_refused(
    mask_function: MaskFunction, local_size: int | None, message: str
) -> None:
    with pytest.raises(UnservableError, match=message):
        sliding_window_of(mask_function, local_size, 100)


def test_chunks_larger_than_every_context_are_no_chunks() -> None:
    assert sliding_window_of(CHUNKS, 16, 16) is None
