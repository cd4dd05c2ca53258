"""Whether requests are traced, and which of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pagemesh.config.checks import require
from pagemesh.config.environment import traces_endpoint_of_environment, traces_share_of_environment


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Whether requests are traced."""

    otlp_traces_endpoint: str | None = None
    """host:port or URL of a collector that takes OpenTelemetry's spans by gRPC; with https:// it is called by TLS.
    Unset, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT of the environment says where;
    without them, nothing is traced, and what callers say of their traces is passed on unchanged."""

    traces_sample_ratio: float | None = None
    """Share of the traces that begin here which is recorded, from 0 to 1; unset, OTEL_TRACES_SAMPLER and
    OTEL_TRACES_SAMPLER_ARG of the environment say it, and without them it is all. A request that comes with a
    trace is recorded if its caller records it, and everywhere or nowhere."""

    def __post_init__(self) -> None:
        url, ratio = self.otlp_traces_endpoint, self.traces_sample_ratio
        is_url = url is None or re.fullmatch(r"(https?://)?[^/\s]+:\d{1,5}/?", url) is not None
        require(is_url, "--otlp-traces-endpoint", url, "host:port, or that behind http(s)://")
        is_share = ratio is None or 0 <= ratio <= 1
        require(is_share, "--traces-sample-ratio", ratio, "between 0 and 1")

    @property
    def endpoint(self) -> str | None:
        """Where spans go, as a URL; None for nowhere."""
        given = self.otlp_traces_endpoint or traces_endpoint_of_environment()
        if given is None or "://" in given:
            return given
        return f"http://{given}"

    @property
    def share(self) -> float:
        """Of the traces that begin here, those that are recorded. ConfigError for an environment that says no share."""
        if self.traces_sample_ratio is not None:
            return self.traces_sample_ratio
        return traces_share_of_environment()
