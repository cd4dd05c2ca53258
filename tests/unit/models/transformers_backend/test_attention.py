from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagemesh.models.transformers_backend.attention import (
    MaskFunction,
    UnservableError,
    sliding_window_of,
)
from tests.support.late_imports import masking_utils


def test_a_causal_mask_has_no_window() -> None:
    assert sliding_window_of(masking_utils.causal_mask_function, None, 1000) is None


@pytest.mark.parametrize("window", [1, 2, 8, 333, 999])
def test_a_window_is_found(window: int) -> None:
    mask_function = masking_utils.sliding_window_causal_mask_function(window)
    assert sliding_window_of(mask_function, window, 1000) == window


def test_a_window_that_no_context_exceeds_is_none() -> None:
    assert (
        sliding_window_of(masking_utils.sliding_window_causal_mask_function(1000), 1000, 1000)
        is None
    )


def no_first_key(batch: int, head: int, query: int, key: int) -> bool:
    return key > 0 or query == 0


def chunks() -> MaskFunction:
    return masking_utils.chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make_mask_function", "local_size", "message"),
    [
        (lambda: masking_utils.bidirectional_mask_function, None, "position 0 sees position 1"),
        (chunks, 16, "position 16 does not see position 1$"),
        (
            lambda: masking_utils.and_masks(masking_utils.causal_mask_function, no_first_key),
            None,
            "position 1 does not see position 0",
        ),
        (
            lambda: masking_utils.sliding_window_causal_mask_function(12),
            13,
            "position 12 does not see position 0",
        ),
        (
            lambda: masking_utils.sliding_window_causal_mask_function(14),
            13,
            "position 13 sees position 0",
        ),
    ],
    ids=["ahead", "chunks", "a hidden key", "a smaller window", "a larger window"],
)
def test_whatever_else_a_mask_shows_is_refused(
    make_mask_function: Callable[[], MaskFunction], local_size: int | None, message: str
) -> None:
    with pytest.raises(UnservableError, match=message):
        sliding_window_of(make_mask_function(), local_size, 100)


def test_chunks_larger_than_every_context_are_no_chunks() -> None:
    assert sliding_window_of(chunks(), 16, 16) is None
