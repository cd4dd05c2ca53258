"""Errors about a chat request in the words of the dialect that it was made from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pagemesh.errors import PagemeshError

Renaming = tuple[re.Pattern[str], str]
"""How fields of chat completions are called elsewhere: what a name begins with, and what stands there instead."""


def renaming(*pairs: tuple[str, str]) -> tuple[Renaming, ...]:
    """Of patterns and their replacements; the first that fits is taken."""
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


@contextmanager
def in_words_of(names: Sequence[Renaming]) -> Iterator[None]:
    """Errors that name a field name the dialect's own one instead."""
    try:
        yield
    except PagemeshError as error:
        own = _own_name(error.param, names)
        if error.param is None or own == error.param:
            raise
        message = error.message.replace(error.param, own)
        raise type(error)(message, reason=error.reason, param=own) from error


def _own_name(param: str | None, names: Sequence[Renaming]) -> str:
    for pattern, replacement in names:
        if param is not None and pattern.match(param):
            return pattern.sub(replacement, param, count=1)
    return param or ""
