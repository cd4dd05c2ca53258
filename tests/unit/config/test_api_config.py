"""Limits of requests."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.config import ApiConfig
from pagemesh.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_choices": 0}, "--max-choices is 0, but must be between 1 and 16384"),
        ({"max_stop_strings": 0}, "--max-stop-strings is 0, but must be between 1 and 16384"),
        ({"max_logprobs": 21}, "--max-logprobs is 21, but must be between 0 and 20"),
        ({"max_logprobs": -1}, "--max-logprobs is -1, but must be between 0 and 20"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ApiConfig(**setting)
