"""Envoy's span of each request, which is the router's parent: how it is made, and where it is sent."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pagemesh.config import TracesConfig
from pagemesh.config.environment import TracesProtocol, traces_headers_of_environment
from pagemesh.errors import ConfigError
from pagemesh.gateway.names import TYPE

_CLUSTER: Final = "traces"
_SERVICE: Final = "pagemesh-gateway"

_AUTHORITIES_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
)
"""OpenTelemetry's, the more special one first."""

_FLUSH_MS: Final = 1000
"""How long spans wait for others. Envoy's own 5 s would show a trace without its root for as long."""

_METHOD: Final = "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%"
_PATH: Final = "%PATH(NQ)%"
"""The client's, which the transcoder replaces by the names of RPCs."""

_HEADER_VARIABLE: Final = "PAGEMESH_OTLP_HEADER_"
"""And a number from 1: a header's value in Envoy's environment. On its command line, everybody could read it."""

_PORTS: Final = {"http": 80, "https": 443}
_OPTIONS: Final[Mapping[TracesProtocol, str]] = {
    "grpc": "http2_protocol_options",
    "http/protobuf": "http_protocol_options",
}
_ALPN: Final[Mapping[TracesProtocol, str]] = {"grpc": "h2", "http/protobuf": "http/1.1"}


def request_tracing(config: TracesConfig) -> dict[str, Any]:
    """Settings of the connection manager; none where nothing is traced.

    A request that comes with a trace is recorded if its caller records it; of the others, the share that is wanted.
    """
    if config.endpoint is None:
        return {}
    share = {"numerator": round(1_000_000 * config.share), "denominator": "MILLION"}
    of_share = _sampler("trace_id_ratio_based", "TraceIdRatioBased", sampling_percentage=share)
    provider = {
        "name": "envoy.tracers.opentelemetry",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            **_exporting(config.endpoint, config.protocol),
            "service_name": _SERVICE,
            # Envoy's own sampling takes no notice of what a caller has decided.
            "sampler": _sampler("parent_based", "ParentBased", wrapped_sampler=of_share),
        },
    }
    return {
        "tracing": {
            "provider": provider,
            "operation": f"{_METHOD} {_PATH}",
            # Without query strings, in which clients may have put anything.
            "max_path_tag_length": 0,
            "custom_tags": [
                {"tag": tag, "value": value}
                for tag, value in (
                    ("http.method", _METHOD),
                    ("url.path", _PATH),
                    ("pagemesh.request_id", "%REQ(X-REQUEST-ID)%"),
                )
            ],
        }
    }


def _exporting(endpoint: str, protocol: TracesProtocol) -> dict[str, Any]:
    if protocol == "grpc":
        return {"grpc_service": {"envoy_grpc": {"cluster_name": _CLUSTER}, "timeout": "5s"}}
    uri = {"uri": endpoint, "cluster": _CLUSTER, "timeout": "5s"}
    return {"http_service": {"http_uri": uri}}


def _sampler(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {
        "name": f"envoy.tracers.opentelemetry.samplers.{name}",
        "typed_config": {
            "@type": f"{TYPE}tracers.opentelemetry.samplers.v3.{kind}SamplerConfig",
            **settings,
        },
    }


def trace_clusters(config: TracesConfig) -> list[dict[str, Any]]:
    """Envoy's `Cluster` of the collector; none where nothing is traced. ConfigError for TLS without authorities."""
    if config.endpoint is None:
        return []
    url = urlsplit(config.endpoint)
    host, port = url.hostname, url.port or _PORTS[url.scheme]
    address = {"address": host, "port_value": port}
    endpoint = {"endpoint": {"address": {"socket_address": address}}}
    cluster: dict[str, Any] = {
        "name": _CLUSTER,
        "cluster_type": {
            "name": "envoy.clusters.dns",
            "typed_config": {"@type": TYPE + "clusters.dns.v3.DnsCluster"},
        },
        "connect_timeout": "1s",
        # What a collector that hangs keeps waiting: more spans are dropped.
        "circuit_breakers": {"thresholds": [{"max_requests": 64, "max_pending_requests": 64}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPE + "upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {_OPTIONS[config.protocol]: {}},
                **_added_headers(),
            }
        },
        "load_assignment": {
            "cluster_name": _CLUSTER,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    if url.scheme == "https":
        cluster["transport_socket"] = _tls(
            str(host), _authorities(os.environ), _ALPN[config.protocol]
        )
    return [cluster]


def trace_variables(config: TracesConfig) -> dict[str, str]:
    """What Envoy's environment must have for what goes with the spans; nothing where nothing is traced."""
    if config.endpoint is None:
        return {}
    values = traces_headers_of_environment().values()
    return {f"{_HEADER_VARIABLE}{number}": value for number, value in enumerate(values, 1)}


def _added_headers() -> dict[str, Any]:
    """Filters of all that Envoy sends there; none where no headers are wanted.

    The tracer's own setting for headers of gRPC takes them as they are written, in the configuration.
    """
    mutations = [
        {
            "append": {
                "header": {"key": name, "value": f"%ENVIRONMENT({_HEADER_VARIABLE}{number})%"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        }
        for number, name in enumerate(traces_headers_of_environment(), 1)
    ]
    if not mutations:
        return {}
    filters = {
        "header_mutation": {
            "@type": TYPE + "filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": mutations},
        },
        "upstream_codec": {"@type": TYPE + "filters.http.upstream_codec.v3.UpstreamCodec"},
    }
    return {
        "http_filters": [
            {"name": f"envoy.filters.http.{name}", "typed_config": settings}
            for name, settings in filters.items()
        ]
    }


def tracing_runtime(config: TracesConfig) -> dict[str, Any]:
    """Keys of Envoy's runtime; none where nothing is traced."""
    if config.endpoint is None:
        return {}
    return {"tracing.opentelemetry.flush_interval_ms": _FLUSH_MS}


def _tls(host: str, authorities: str, alpn: str) -> dict[str, Any]:
    matcher = {"san_type": "DNS", "matcher": {"exact": host}}
    return {
        "name": "tls",
        "typed_config": {
            "@type": TYPE + "transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": host,
            "common_tls_context": {
                "alpn_protocols": [alpn],
                "validation_context": {
                    "trusted_ca": {"filename": authorities},
                    "match_typed_subject_alt_names": [matcher],
                },
            },
        },
    }


def _authorities(environment: Mapping[str, str]) -> str:
    given = (environment.get(name) for name in _AUTHORITIES_VARIABLES)
    known = ssl.get_default_verify_paths()
    path = next((each for each in (*given, known.cafile) if each), None)
    if path is None:
        raise ConfigError(
            f"{_AUTHORITIES_VARIABLES[1]} is unset, but must name a PEM file with the authorities of the"
            " collector's certificate: this machine has none of its own"
        )
    return path
