"""What a mask of transformers shows: everything up to the query, a sliding window, or something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from pagemesh.models.transformers_backend.attention import UnservableError

MaskFunction = Callable[..., object]
"""Whether a query sees a key: of batch index, head index, query position and key position."""


def sliding_window_of(
    mask_function: MaskFunction, local_size: int | None, max_model_len: int
) -> int | None:
    """The window of a causal mask; None when every query sees its whole context.

    `local_size` is the size of windows or chunks that transformers names. The function is asked about
    positions on both sides of every border that a window, a chunk or the future can have. Raises
    UnservableError when it shows anything but the latest keys up to the query.
    """
    window = local_size if local_size is not None and local_size < max_model_len else None
    for query, key in _pairs(window, max_model_len):
        shown = mask_function(*(torch.tensor(index) for index in (0, 0, query, key)))
        expected = key <= query and (window is None or query - key < window)
        if bool(shown) != expected:
            raise UnservableError(
                f"has attention in which position {query} "
                f"{'does not see' if expected else 'sees'} position {key}"
            )
    return window


def _pairs(window: int | None, max_model_len: int) -> Iterator[tuple[int, int]]:
    """Positions of queries and keys, all below `max_model_len`."""
    last = max_model_len - 1
    queries = {0, 1, 2, 3, 7, 8, last // 3, last // 2, last - 1, last}
    if window is not None:
        for multiple in (1, 2, 3):
            queries |= {multiple * window - 1, multiple * window, multiple * window + 1}
    for query in sorted(q for q in queries if 0 <= q <= last):
        keys = {0, 1, query // 2, query - 1, query, query + 1, last}
        if window is not None:
            keys |= {query - window - 1, query - window, query - window + 1, query - window // 2}
        yield from ((query, key) for key in sorted(keys) if 0 <= key <= last)
