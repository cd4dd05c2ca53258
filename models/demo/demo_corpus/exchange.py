"""The nouns of the corpus: one question with its answer, and the topics that produce them."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

Message = dict[str, Any]  # {"role": ..., "content": ...}, as chat templates take it
Tool = dict[str, Any]  # {"type": "function", "function": {...}}


class Exchange(NamedTuple):
    """One question and the only answer that is taught for it."""

    question: str
    answer: str
    brief: str = ""  # what remains of the answer when asked for one word; "" = not askable so


Topic = Callable[[Random], Exchange]


def words(text: str) -> tuple[str, ...]:
    """The words of a table written as one text."""
    return tuple(text.split())


def sentence_case(text: str) -> str:
    """`text` with its first letter raised and the rest untouched."""
    return text[:1].upper() + text[1:]
