"""Whether requests are traced, which of them, and where their spans go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pagemesh.config.checks import require
from pagemesh.config.environment import (
    ENDPOINT_VARIABLES,
    HEADERS_VARIABLES,
    TracesProtocol,
    traces_endpoint_of_environment,
    traces_protocol_of_environment,
    traces_share_of_environment,
)
from pagemesh.errors import ConfigError

_FLAG: Final = "--otlp-traces-endpoint"
_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^/\s:\[\]]+)"
_ADDRESS: Final = re.compile(rf"{_HOST}:\d{{1,5}}/?")
_URL_OF_ADDRESS: Final = re.compile(rf"https?://{_HOST}:\d{{1,5}}/?")
_URL: Final = re.compile(rf"https?://{_HOST}(:\d{{1,5}})?(/\S*)?")

_PATH: Final = "/v1/traces"
"""Of a receiver's spans, below a URL that is for all that it receives."""


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Whether requests are traced."""

    otlp_traces_endpoint: str | None = None
    """host:port or URL of a collector that takes OpenTelemetry's spans; with https:// it is called by TLS. A URL for
    http/protobuf is used as it is, host:port has /v1/traces behind it. Unset, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
    OTEL_EXPORTER_OTLP_ENDPOINT of the environment says where; without them, nothing is traced, and what callers say
    of their traces is passed on unchanged."""

    traces_sample_ratio: float | None = None
    """Share of the traces that begin here which is recorded, from 0 to 1; unset, OTEL_TRACES_SAMPLER and
    OTEL_TRACES_SAMPLER_ARG of the environment say it, and without them it is all. A request that comes with a
    trace is recorded if its caller records it, and everywhere or nowhere."""

    otlp_traces_protocol: TracesProtocol | None = None
    """How spans are sent; unset, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL of the environment
    says it, and without them it is grpc. Keys that a receiver asks for are OTEL_EXPORTER_OTLP_HEADERS of the
    environment, for either protocol."""

    def __post_init__(self) -> None:
        if self.otlp_traces_endpoint is not None:
            _require_endpoint(_FLAG, self.otlp_traces_endpoint, self.protocol)
        ratio = self.traces_sample_ratio
        is_share = ratio is None or 0 <= ratio <= 1
        require(is_share, "--traces-sample-ratio", ratio, "between 0 and 1")

    @property
    def protocol(self) -> TracesProtocol:
        """How spans are sent. ConfigError for an environment that says no way that there is."""
        return self.otlp_traces_protocol or traces_protocol_of_environment() or "grpc"

    @property
    def endpoint(self) -> str | None:
        """Where spans go, as a URL; None for nowhere. ConfigError for an environment that says no place."""
        name, given = _FLAG, self.otlp_traces_endpoint
        if given is None:
            name, given = traces_endpoint_of_environment() or ("", None)
        if given is None:
            return None
        _require_endpoint(name, given, self.protocol)
        is_address = "://" not in given
        url = f"http://{given}" if is_address else given
        if self.protocol == "http/protobuf" and (is_address or name == ENDPOINT_VARIABLES[-1]):
            return url.removesuffix("/") + _PATH
        return url

    @property
    def share(self) -> float:
        """Of the traces that begin here, those that are recorded. ConfigError for an environment that says no share."""
        if self.traces_sample_ratio is not None:
            return self.traces_sample_ratio
        return traces_share_of_environment()


def _require_endpoint(name: str, given: str, protocol: TracesProtocol) -> None:
    """Raise ConfigError unless spans can be sent there."""
    if re.search("[@?#]", given):
        raise ConfigError(
            f"{name} has a user or a query in it, but must be an address or URL without keys, as logs show it:"
            f" they are for {HEADERS_VARIABLES[-1]} of the environment"
        )
    if protocol == "grpc" and name == _FLAG:
        known, expected = _URL_OF_ADDRESS, "host:port, or that behind http(s)://, for gRPC"
    else:
        known, expected = _URL, "host:port or a URL with http(s)://"
    is_place = _ADDRESS.fullmatch(given) or known.fullmatch(given)
    require(is_place is not None, name, given, expected)
