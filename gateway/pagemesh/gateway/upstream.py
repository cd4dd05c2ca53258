"""The routers as Envoy's cluster: how they are found, watched and called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import ConfigError
from pagemesh.gateway.names import CLUSTER, MIB, TYPE


def router_cluster(routers: Sequence[str]) -> dict[str, Any]:
    """Envoy's `Cluster`. Raises ConfigError for a router that is not host:port."""
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 16384)
    return {
        "name": CLUSTER,
        # One host per address that a router's name has now: replicas behind a headless service.
        "cluster_type": {
            "name": "envoy.clusters.dns",
            "typed_config": {
                "@type": TYPE + "clusters.dns.v3.DnsCluster",
                # A router that has just started is known before the next one is replaced.
                "dns_refresh_rate": "1s",
            },
        },
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": MIB,
        # Refuse at once when no router is healthy, instead of trying unhealthy ones.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # Admission is the router's: it answers 429 long before these are reached.
        "circuit_breakers": {"thresholds": [{**limits, "max_retries": 64}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPE + "upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        # Notices within five seconds a router that froze, or whose machine or network is
                        # gone, in the middle of a stream. Envoy makes intervals up to 15 % longer. One that
                        # is only slow must not be given up: nobody can go on with its streams.
                        "connection_keepalive": {"interval": "1s", "timeout": "3s"}
                    }
                },
            }
        },
        "outlier_detection": _lost_calls(),
        "health_checks": [_health_check()],
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [_endpoint(router) for router in routers]}],
        },
    }


def _lost_calls() -> dict[str, Any]:
    """No call goes to where one was lost, until a health check is answered there.

    A frozen router's are lost when its connection is given up: much sooner than three checks of it have failed.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        # The last one stays, whatever it does.
        "max_ejection_percent": 99,
    }


def _health_check() -> dict[str, Any]:
    return {
        "timeout": "2s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_interval": "0.25s",
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "grpc_health_check": {},
    }


def _endpoint(router: str) -> dict[str, Any]:
    host, _, port = router.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--routers has {router!r}, but must have host:port")
    address = {"address": host.strip("[]"), "port_value": int(port)}
    return {"endpoint": {"address": {"socket_address": address}}}
