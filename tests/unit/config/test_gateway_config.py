"""The gateway's settings: lists may be words, or JSON as vLLM has it; numbers have bounds."""

from __future__ import annotations

import pytest

from pagemesh.config import CorsConfig, GatewayConfig, HttpLimitsConfig
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


def test_a_grace_period_is_a_time() -> None:
    assert GatewayConfig(("router:7000",), grace_period=0.0).grace_period == 0.0
    with pytest.raises(ConfigError, match=r"^--grace-period is .* between 0 and"):
        GatewayConfig(("router:7000",), grace_period=-1.0)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_metrics_port_is_a_port(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^--metrics-port is {port}, .* between 1 and 65535"):
        GatewayConfig(("router:7000",), metrics_port=port)


def test_the_metrics_port_is_another_one() -> None:
    with pytest.raises(ConfigError, match=r"^--metrics-port is 8000, .* another one than --port"):
        GatewayConfig(("router:7000",), metrics_port=8000)


def test_a_printed_configuration_with_a_metrics_port_needs_an_admin_socket() -> None:
    with pytest.raises(ConfigError, match=r"^--metrics-port is 9090, which needs --admin-socket"):
        GatewayConfig(("router:7000",), metrics_port=9090, print_config=())
    GatewayConfig(("router:7000",), metrics_port=9090, print_config=(), admin_socket="/tmp/a.sock")
