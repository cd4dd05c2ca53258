"""Lists of the gateway's settings may be words, or JSON as vLLM has it."""

from __future__ import annotations

import pytest

from pagemesh.config import CorsConfig, HttpLimitsConfig
from pagemesh.errors import ConfigError


def test_lists_are_words_or_json() -> None:
    assert CorsConfig().origins == ("*",)
    assert CorsConfig(("https://a", "https://b")).origins == ("https://a", "https://b")
    assert CorsConfig(('["https://a", "https://b"]',)).origins == ("https://a", "https://b")
    assert CorsConfig(("[]",)).origins == CorsConfig(()).origins == ()


@pytest.mark.parametrize("value", ["[1]", '["a"', '[""]', "[null]", "ü", "a\nb", ""])
def test_a_list_that_is_none_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--allowed-headers is .* words or a JSON list$"):
        CorsConfig(allowed_headers=(value,))


@pytest.mark.parametrize("value", [0, -1, 2**31])
def test_limits_have_both_ends(value: int) -> None:
    with pytest.raises(ConfigError, match=r"^--max-connections is .* between 1 and 2147483647"):
        HttpLimitsConfig(max_connections=value)
