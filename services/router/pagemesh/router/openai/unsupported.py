"""Refuses fields that ask for something pagemesh cannot do, instead of ignoring them silently."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from pagemesh.errors import UnsupportedError
from pagemesh.router.openai.fields import shown

_OFF = (None, False)

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None,),
    "audio": (None,),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": _OFF,
    "documents": (None, []),
    "echo": _OFF,
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "include_stop_str_in_output": _OFF,
    "length_penalty": (None, 1),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "prompt_embeds": (None,),
    "reasoning_effort": (None,),
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": _OFF,
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Known fields that would change the answer, with the values that ask for nothing."""


def refuse_unsupported(raw: Mapping[str, Any], served: Container[str] = ()) -> None:
    """Raise UnsupportedError naming the first field whose value asks for something.

    `served` are those that the endpoint has, other than most.
    """
    for name, value in raw.items():
        neutral = None if name in served else NEUTRAL_VALUES.get(name)
        if neutral is not None and not any(_same(value, one) for one in neutral):
            raise UnsupportedError(f"{name} is not supported (it is {shown(value)})", param=name)
    # The model is never shown tools, so "none" is the only choice that can be kept.
    if raw.get("tools") and raw.get("tool_choice") != "none":
        raise UnsupportedError('tools are only accepted with tool_choice "none"', param="tools")
    if raw.get("tool_choice") not in (None, "none", "auto"):
        raise UnsupportedError(
            f'tool_choice is {shown(raw["tool_choice"])}, but only "none" is supported',
            param="tool_choice",
        )
    options = raw.get("stream_options")
    if isinstance(options, dict) and options.get("continuous_usage_stats"):
        raise UnsupportedError(
            "stream_options.continuous_usage_stats is not supported",
            param="stream_options.continuous_usage_stats",
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
