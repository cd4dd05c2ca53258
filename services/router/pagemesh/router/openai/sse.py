"""Frames of a server-sent event stream (https://html.spec.whatwg.org/multipage/server-sent-events)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

DONE = b"data: [DONE]\n\n"
"""Ends OpenAI's streams."""

KEEPALIVE = b": keepalive\n\n"
"""A comment: clients skip it, but it flushes headers and keeps proxies from closing the connection."""


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return to_json(value)


def data_frame(value: Mapping[str, Any]) -> bytes:
    """One event; JSON escapes line breaks, so that it is a single line."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_frame(name: str, value: Mapping[str, Any]) -> bytes:
    """One event with a name, as other APIs have them."""
    return b"event: " + name.encode() + b"\n" + data_frame(value)
