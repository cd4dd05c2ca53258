"""What the tests of all files share: their syntax, a million objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.hygiene.tree import syntax


@pytest.fixture(scope="package", autouse=True)
def trees_stay_until_the_end() -> Iterator[None]:
    """To look for garbage in them takes longer than to parse them; nothing in them leads back."""
    gc.disable()
    yield
    syntax.cache_clear()
    gc.enable()
