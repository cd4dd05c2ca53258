"""Who is measured when, so that whoever comes first, or after whom, is fair to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_One = TypeVar("_One")


def turns(ones: Sequence[_One], number: int) -> list[_One]:
    """All of them in their order, from another one on in each round."""
    start = number % len(ones)
    return [*ones[start:], *ones[:start]]
