"""A listener of its own for Prometheus: Envoy's metrics that say something of this mesh, and nothing else.

It passes one request on to the admin interface, which is asked for those metrics alone: nobody gets at the
configuration there or stops Envoy, and the number of series is what is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from pagemesh.config.connections import MeshTlsConfig
from pagemesh.gateway.names import CLUSTER, MANAGER, TYPE
from pagemesh.gateway.tls import mesh_certificates
from pagemesh.telemetry.metrics import gateway
from pagemesh.telemetry.metrics.catalog import specs_of

ADMIN_CLUSTER: Final = "admin"

PATHS: Final = ("/stats/prometheus", "/metrics")
"""Envoy's own, and where Prometheus looks when nobody tells it otherwise."""

_SCOPES: Final = {
    "envoy_http_": f"http.{MANAGER}.",
    "envoy_cluster_": f"cluster.{CLUSTER}.",
    "envoy_server_": "server.",
}
"""What Envoy calls the beginning of a metric's name, by what Prometheus sees of it."""


def stats_filter(names: Iterable[str]) -> str:
    """A regular expression of Envoy's own names of these metrics."""
    return "^(" + "|".join(map(_own_name, names)) + ")$"


def _own_name(name: str) -> str:
    for prefix, scope in _SCOPES.items():
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            # Of statuses, Envoy has a metric for each digit.
            rest = f"{rest.removesuffix('xx')}[1-5]xx" if rest.endswith("_xx") else rest
            # Prometheus sees underscores for dots.
            return re.escape(scope) + rest.replace("_", "[._]")
    raise AssertionError(f"{name} is of no part of Envoy that is known")


def metrics_chain(mesh: MeshTlsConfig, *, watched: bool) -> dict[str, Any]:
    """The listener's `FilterChain`; with TLS between the processes, for whoever has a certificate of the mesh."""
    chain: dict[str, Any] = {
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": _connection_manager(),
            }
        ],
        "transport_socket_connect_timeout": "10s",
    }
    certificates = mesh_certificates(mesh, None, watched=watched)
    if certificates is not None:
        certificates["alpn_protocols"] = ["http/1.1"]
        chain["transport_socket"] = {
            "name": "tls",
            "typed_config": {
                "@type": TYPE + "transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": certificates,
                "require_client_certificate": True,
            },
        }
    return chain


def admin_cluster(address: dict[str, Any]) -> dict[str, Any]:
    """Envoy's `Cluster` that is Envoy's own admin interface."""
    return {
        "name": ADMIN_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": ADMIN_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _connection_manager() -> dict[str, Any]:
    return {
        "@type": TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        # Its own requests are no client's.
        "stat_prefix": "metrics",
        "codec_type": "HTTP1",
        "server_name": "pagemesh",
        "normalize_path": True,
        "stream_idle_timeout": "10s",
        "request_headers_timeout": "10s",
        "request_timeout": "10s",
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": TYPE + "filters.http.router.v3.Router"},
            }
        ],
        "route_config": {
            "name": "metrics",
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [_route(path) for path in PATHS]}
            ],
        },
    }


def _route(path: str) -> dict[str, Any]:
    """For this path alone, without anything behind it: what is asked of the admin interface is said here."""
    declared = stats_filter(spec.name for spec in specs_of(gateway))
    return {
        "match": {
            "path": path,
            "headers": [
                {"name": ":method", "string_match": {"exact": "GET"}},
                {"name": ":path", "string_match": {"exact": path}},
            ],
        },
        "route": {
            "cluster": ADMIN_CLUSTER,
            "timeout": "10s",
            "prefix_rewrite": f"/stats/prometheus?filter={quote(declared, safe='')}",
        },
    }
