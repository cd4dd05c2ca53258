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


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_shares_are_between_nothing_and_all(ratio: float) -> None:
    with pytest.raises(
        ConfigError, match=r"--traces-sample-ratio is .*, but must be between 0 and"
    ):
        TracesConfig(traces_sample_ratio=ratio)


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        (None, None, 1.0),
        ("always_off", None, 0.0),
        ("parentbased_always_on", "0.5", 1.0),
        ("traceidratio", "0.5", 0.5),
        ("parentbased_traceidratio", "0.25", 0.25),
        ("traceidratio", None, 1.0),
    ],
)
def test_the_share_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, sampler: str | None, argument: str | None, share: float
) -> None:
    for name, value in (("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert TracesConfig().share == share
    assert TracesConfig(traces_sample_ratio=0.75).share == 0.75


@pytest.mark.parametrize(
    ("sampler", "argument", "message"),
    [
        (
            "jaeger_remote",
            None,
            "OTEL_TRACES_SAMPLER is 'jaeger_remote', but must be one of always_on",
        ),
        ("traceidratio", "2", "OTEL_TRACES_SAMPLER_ARG is '2', but must be between 0 and 1"),
        ("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG is 'half', but must be between 0 and 1"),
    ],
)
def test_an_environment_that_says_no_share_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str | None, message: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    if argument is not None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    with pytest.raises(ConfigError, match=message):
        _ = TracesConfig().share


def test_an_endpoint_is_given_on_as_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TracesConfig("c:1").endpoint == "http://c:1"
    assert TracesConfig("https://c:1").endpoint == "https://c:1"
    assert TracesConfig().endpoint is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d:2")
    assert TracesConfig().endpoint == "http://d:2"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://e:3")
    assert TracesConfig().endpoint == "http://e:3"
