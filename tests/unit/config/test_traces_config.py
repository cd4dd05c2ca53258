"""Where spans are sent."""

from __future__ import annotations

import pytest

from pagemesh.config import TracesConfig
from pagemesh.config.environment import traces_headers_of_environment
from pagemesh.errors import ConfigError

GENERAL, SPECIAL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
LANGFUSE = "https://cloud.langfuse.com/api/public/otel"


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


@pytest.mark.parametrize(
    ("name", "given", "url"),
    [
        (SPECIAL, f"{LANGFUSE}/v1/traces", f"{LANGFUSE}/v1/traces"),
        (SPECIAL, "http://c:4318", "http://c:4318"),
        (SPECIAL, "[::1]:4318", "http://[::1]:4318/v1/traces"),
        (GENERAL, LANGFUSE, f"{LANGFUSE}/v1/traces"),
        (GENERAL, "http://c:4318/", "http://c:4318/v1/traces"),
        (GENERAL, "c:4318", "http://c:4318/v1/traces"),
    ],
)
def test_by_http_the_general_variable_has_the_path_behind_it(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, url: str
) -> None:
    monkeypatch.setenv(name, given)
    config = TracesConfig(otlp_traces_protocol="http/protobuf")
    assert (config.protocol, config.endpoint) == ("http/protobuf", url)
    if name == SPECIAL:
        assert TracesConfig(given, otlp_traces_protocol="http/protobuf").endpoint == url


def test_the_protocol_is_the_flags_or_the_more_special_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert TracesConfig().protocol == "grpc"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert TracesConfig("http://c/v1/traces").endpoint == "http://c/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    assert TracesConfig().protocol == "grpc"
    assert TracesConfig(otlp_traces_protocol="http/protobuf").protocol == "http/protobuf"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    message = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json', but must be one of grpc, http/pro"
    with pytest.raises(ConfigError, match=message):
        TracesConfig("c:1")


@pytest.mark.parametrize("given", ["collector", "grpc://c:4317", "http://", "http://c:x/"])
def test_what_the_environment_says_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(GENERAL, given)
    with pytest.raises(ConfigError, match=f"^{GENERAL} is '{given}', but must be host:port or a"):
        _ = TracesConfig().endpoint


@pytest.mark.parametrize(
    "given", ["https://me:secret@c:1/v1/traces", "me:secret@c:1", "http://c/v1/traces?key=secret"]
)
def test_keys_in_an_endpoint_are_refused_unsaid(given: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS of the env") as refused:
        TracesConfig(given, otlp_traces_protocol="http/protobuf")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("", {}),
        ("Authorization=Basic%20YTpi==", {"authorization": "Basic YTpi=="}),
        ("a=b c, X-B = d%2Ce ,", {"a": "b c", "x-b": "d,e"}),
    ],
)
def test_headers_are_pairs_that_may_be_encoded(text: str, headers: dict[str, str]) -> None:
    assert traces_headers_of_environment({"OTEL_EXPORTER_OTLP_HEADERS": text}) == headers


def test_headers_of_spans_alone_stand_instead_of_those_of_all() -> None:
    both = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=b", "OTEL_EXPORTER_OTLP_HEADERS": "c=d"}
    assert traces_headers_of_environment(both) == {"a": "b"}


@pytest.mark.parametrize(
    "pair", ["secret", "=secret", "a b=secret", "a=secret%0Ab", "a=secr\u00e9t", "a="]
)
def test_what_is_no_header_is_refused_unsaid(pair: str) -> None:
    with pytest.raises(
        ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS has no header in place 2"
    ) as no:
        traces_headers_of_environment({"OTEL_EXPORTER_OTLP_HEADERS": f"a=b,{pair}"})
    assert "secr" not in str(no.value)


def test_headers_that_every_message_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS sets 'Host'"):
        traces_headers_of_environment({"OTEL_EXPORTER_OTLP_HEADERS": "Host=a"})
