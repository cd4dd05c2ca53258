"""Conversations in the form of ShareGPT's files.

[{"id": "…", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}, …]
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, NamedTuple

from pagemesh.errors import ConfigError

_ASKS: Final = {"human", "user"}
_ANSWERS: Final = {"gpt", "assistant", "chatgpt", "bing", "bard"}


class Message(NamedTuple):
    """What one of them said."""

    role: Literal["system", "user", "assistant"]
    text: str


def parse_json(flag: str, path: str, text: str) -> object:
    """What a file has; ConfigError when it is no JSON."""
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} is {path!r}: {error}") from error
    return content


def read_chats(flag: str, path: str, content: object) -> list[list[Message]]:
    """The messages of each conversation; ConfigError naming the one that is wrong."""
    if not isinstance(content, list):
        raise ConfigError(f"{flag} is {path!r}, which is no list of conversations")
    found = []
    for number, entry in enumerate(content):
        try:
            found.append(_messages(entry))
        except (ValueError, TypeError, KeyError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"{flag} is {path!r}: conversation {number}: {reason}") from None
    return found


def _messages(entry: Any) -> list[Message]:
    if not isinstance(entry, dict):
        raise TypeError(f"it is {str(entry)[:80]!r}, but must be an object")
    messages = entry["conversations"]
    if not isinstance(messages, list):
        raise TypeError(f"conversations is {str(messages)[:80]!r}, but must be a list")
    found: list[Message] = []
    has_been_asked = False
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise TypeError(f"message {number} is {str(message)[:80]!r}, but must be an object")
        who, value = (_text(message, name, number) for name in ("from", "value"))
        if who == "system" and not has_been_asked:
            found.append(Message("system", value))
        elif who in _ASKS:
            found.append(Message("user", value))
            has_been_asked = has_been_asked or bool(value)
        elif who in _ANSWERS:
            found.append(Message("assistant", value))
        else:
            raise ValueError(f"message {number}: from is {who!r}, but must be system, human or gpt")
    return found


def _text(message: dict[str, Any], name: str, number: int) -> str:
    if name not in message:
        raise ValueError(f"message {number}: {name!r} is missing")
    value = message[name]
    if not isinstance(value, str):
        raise TypeError(f"message {number}: {name} is {str(value)[:80]!r}, but must be text")
    return value
