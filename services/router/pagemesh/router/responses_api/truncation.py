"""Which messages a conversation can do without when its context is too long (`truncation: "auto"`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INSTRUCTIONS = ("system", "developer")


def beginnings(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Places, in order, where the conversation may begin instead: with something that the user says."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    return users[1:]


def without_beginning(chat: dict[str, Any], start: int) -> dict[str, Any]:
    """The chat request with its instructions and the messages from `start` on."""
    messages = chat["messages"]
    kept = [message for message in messages[:start] if message["role"] in _INSTRUCTIONS]
    return {**chat, "messages": kept + messages[start:]}
