"""Where spans are sent."""

from __future__ import annotations

import pytest

from pagemesh.config import TracesConfig
from pagemesh.errors import ConfigError


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:4317", "http://collector:4317", "https://collector.example:4317/", "[::1]:4317"],
)
def test_endpoints_are_addresses_or_urls(endpoint: str) -> None:
    assert TracesConfig(endpoint).otlp_traces_endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["", "collector", "grpc://c:4317", "http://c:4317/v1/traces"])
def test_anything_else_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint is"):
        TracesConfig(endpoint)
