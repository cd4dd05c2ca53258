"""Refuses fields that ask for something pagemesh cannot do, instead of ignoring them silently."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from pagemesh.errors import UnsupportedError
from pagemesh.router.openai.fields import shown

_OFF = (None, False)

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "audio": (None,),
    "ec_transfer_params": (None, {}),
    "echo": _OFF,
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "kv_transfer_params": (None, {}),
    "logprob_token_ids": (None,),
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "prompt_embeds": (None,),
    "repetition_detection": (None,),
    "suffix": (None, ""),
    "thinking_token_budget": (None, -1),
    "use_beam_search": _OFF,
    "watermarking": _OFF,
    "web_search_options": (None,),
}
"""Known fields that would change the answer, with the values that ask for nothing."""

OF_POOLING: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL_VALUES,
    "normalize": (None,),
    "padding": (None, "do_not_pad"),
    "task": (None, "embed"),
}
"""The same for routes that do not generate."""

_REPLACED: Mapping[str, str] = {
    "functions": "tools",
    "function_call": "tool_choice",
    "normalize": "use_activation",
}
"""Fields that OpenAI or vLLM has given up, with those that came in their place."""


def refuse_unsupported(
    raw: Mapping[str, Any],
    served: Container[str] = (),
    neutral_values: Mapping[str, tuple[object, ...]] = NEUTRAL_VALUES,
) -> None:
    """Raise UnsupportedError naming the first field whose value asks for something.

    `served` are those that the endpoint has, other than most.
    """
    for name, value in raw.items():
        neutral = None if name in served else neutral_values.get(name)
        if neutral is not None and not any(_same(value, one) for one in neutral):
            instead = f"; use {_REPLACED[name]}" if name in _REPLACED else ""
            raise UnsupportedError(
                f"{name} is not supported (it is {shown(value)}){instead}", param=name
            )
    form = raw.get("response_format")
    if isinstance(form, dict) and form.get("type") == "structural_tag":
        raise UnsupportedError(
            'response_format.type is "structural_tag", which is not supported; use "json_schema", or a'
            " grammar in structured_outputs",
            param="response_format.type",
        )


def refuse_foreign(raw: Mapping[str, Any], *names: str) -> None:
    """Raise UnsupportedError naming the first of the other endpoint's fields that asks for something.

    1 and 0 ask for nothing: one answer of one, no rivals.
    """
    for name in names:
        if raw.get(name) not in (None, 0, 1):
            raise UnsupportedError(
                f"{name} is not supported here (it is {shown(raw[name])})", param=name
            )


def _same(value: object, neutral: object) -> bool:
    """Equality in which false is not 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
