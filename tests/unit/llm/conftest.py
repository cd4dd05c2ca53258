"""What an `LLM` does to the program that uses it is undone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(scope="module", autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """An LLM hands the program's logs to the standard library's logging."""
    yield
    structlog.reset_defaults()
