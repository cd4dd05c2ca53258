"""Two attention implementations for transformers, which hand every call to whoever runs the model.

Registered as transformers describes: https://huggingface.co/docs/transformers/attention_interface. A mask of
transformers shows everything up to the query, a sliding window, or something else: that is found out here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

import torch
import transformers

PAGED: Final = "pagemesh"
"""Name of the implementation that serves. It has no masks: each layer's `LayerAttention` says it all."""

WATCHED: Final = "pagemesh_watched"
"""Name of the implementation that is also asked for masks, so that they can be looked at."""


class UnservableError(Exception):
    """A model needs what paged KV does not have; the words end a sentence that begins with its name."""


class AttentionCall(NamedTuple):
    """What a layer of a model asks for."""

    module: torch.nn.Module
    query: torch.Tensor  # [1, heads, T, head_dim]
    key: torch.Tensor  # [1, kv heads, T, head_dim]
    value: torch.Tensor  # [1, kv heads, T, value_dim]
    mask: torch.Tensor | None
    options: dict[str, Any]  # everything else that the layer passes by name


class AttentionCalls(Protocol):
    """Answers the calls of one forward pass, in the order in which the layers make them."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention [1, T, heads, value_dim]."""
        ...


class WatchedCalls(AttentionCalls, Protocol):
    """The same for `WATCHED`."""

    def make_mask(self, **request: Any) -> torch.Tensor | None:
        """The mask that layers then pass on; the arguments are those of transformers' mask functions."""
        ...


_CALLS: ContextVar[Any] = ContextVar("attention calls of the forward pass that this thread runs")


@contextmanager
def answering(calls: AttentionCalls) -> Iterator[None]:
    """Answer what models ask in this thread."""
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    call = AttentionCall(module, query, key, value, attention_mask, options)
    return _CALLS.get().attend(call), None


def _make_mask(**request: Any) -> torch.Tensor | None:
    mask: torch.Tensor | None = _CALLS.get().make_mask(**request)
    return mask


def register() -> None:
    """Make both known to transformers, whose models take seconds to import: not before one is asked for."""
    transformers.AttentionInterface.register(PAGED, _attend)
    transformers.AttentionInterface.register(WATCHED, _attend)
    transformers.AttentionMaskInterface.register(WATCHED, _make_mask)


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
