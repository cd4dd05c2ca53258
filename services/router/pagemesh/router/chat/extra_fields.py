"""Sampling fields that are vLLM's own, and mean the same in every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FIELDS: Final = (
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "stop_token_ids",
    "stream_interval",
    "structured_outputs",
    "top_k",
)


def extra_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a body has, for the chat request that is made from it."""
    return {name: raw[name] for name in _FIELDS if name in raw}
