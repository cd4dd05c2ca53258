"""Envoy's whole configuration as one JSON-like dictionary, made from `GatewayConfig`."""

from __future__ import annotations

from typing import Any

from pagemesh.config import GatewayConfig
from pagemesh.gateway.filters import access_log, http_filters
from pagemesh.gateway.metrics_listener import admin_cluster, metrics_chain
from pagemesh.gateway.names import IDLE_SECONDS, MANAGER, TYPE, VANISHED_SECONDS, keepalive_options
from pagemesh.gateway.replies import headers_timeout, local_reply_config
from pagemesh.gateway.routes import route_config
from pagemesh.gateway.tls import router_transport_socket, transport_socket
from pagemesh.gateway.tracing import request_tracing, trace_clusters, tracing_runtime
from pagemesh.gateway.upstream import router_cluster

# For a client that connects and says nothing.
_HANDSHAKE_TIMEOUT = "10s"

# What is read at once is also decompressed at once, to a thousand times its size at worst, before anybody
# sees how much it has become.
_BUFFER_BYTES = 32 * 1024
# The listener that clients meet.
_CLIENTS = "http"

# As the other processes' lines.
_LOG_LINE = {
    "event": "%j",
    "level": "%l",
    "service": "gateway",
    "timestamp": "%Y-%m-%dT%H:%M:%S.%f%z",
}


def bootstrap(config: GatewayConfig, *, alone: bool = False) -> dict[str, Any]:
    """Envoy's `Bootstrap` message. Raises ConfigError for a router that is not host:port.

    One that stands `alone` refers to no file that this process writes; Envoy then reads certificates
    once.
    """
    settings: dict[str, Any] = {
        # Without a name Envoy watches no files.
        "node": {"id": "gateway", "cluster": "pagemesh"},
        "static_resources": {
            "listeners": _listeners(config, watched=not alone),
            "clusters": _clusters(config, watched=not alone),
        },
        "layered_runtime": {"layers": [_runtime(config)]},
    }
    if config.log_format == "json":
        settings["application_log_config"] = {"log_format": {"json_format": _LOG_LINE}}
    if config.admin_socket is not None:
        settings["admin"] = {"address": _pipe(config.admin_socket)}
    return settings


def _runtime(config: GatewayConfig) -> dict[str, Any]:
    # Envoy's limit for all listeners takes the end of a connection that it does not limit, such as a
    # probe's, for the end of one that it does: each would let in one client more.
    limit = f"envoy.resource_limits.listener.{_CLIENTS}.connection_limit"
    keys = {limit: config.limits.max_connections, **tracing_runtime(config.traces)}
    return {"name": "gateway", "static_layer": keys}


def _listeners(config: GatewayConfig, *, watched: bool) -> list[dict[str, Any]]:
    chain: dict[str, Any] = {
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": _connection_manager(config),
            }
        ]
    }
    secured = {**chain, "transport_socket_connect_timeout": _HANDSHAKE_TIMEOUT}
    transport = transport_socket(config.tls, watched=watched)
    if transport is not None:
        secured["transport_socket"] = transport
    listeners = [
        {
            **_listener(_CLIENTS, _tcp(config.host, config.port), secured),
            "socket_options": keepalive_options(),
        }
    ]
    if config.local_socket is not None:
        # Not limited: whoever watches over the gateway must not take one that is full for dead.
        listeners.append(_listener("local", _pipe(config.local_socket), chain))
    if config.metrics_port is not None:
        address = _tcp(config.host, config.metrics_port)
        shown = metrics_chain(config.mesh, watched=watched)
        listeners.append(_listener("metrics", address, shown))
    return listeners


def _clusters(config: GatewayConfig, *, watched: bool) -> list[dict[str, Any]]:
    routers = router_cluster(config.routers)
    secured = router_transport_socket(config.mesh, watched=watched)
    if secured is not None:
        routers["transport_socket"] = secured
    clusters = [routers, *trace_clusters(config.traces)]
    if config.metrics_port is not None:
        assert config.admin_socket is not None, "who starts Envoy has chosen one"
        clusters.append(admin_cluster(_pipe(config.admin_socket)))
    return clusters


def _listener(name: str, address: dict[str, Any], chain: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "address": address,
        # Without this a second gateway on the same port starts happily and takes half the requests.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _tcp(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host.strip("[]"), "port_value": port}}


def _pipe(path: str) -> dict[str, Any]:
    return {"pipe": {"path": path, "mode": 0o600}}


def _connection_manager(config: GatewayConfig) -> dict[str, Any]:
    limits = config.limits
    return {
        "@type": TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": MANAGER,
        "codec_type": "AUTO",
        "use_remote_address": True,
        **_request_ids(),
        **request_tracing(config.traces),
        "server_name": "pagemesh",
        # Older proxies, nginx's default among them, speak HTTP/1.0.
        "http_protocol_options": {
            "accept_http_10": True,
            "default_host_for_http_10": "pagemesh",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": limits.max_concurrent_streams,
            # Also for a client that froze, whose system still acknowledges what comes.
            "connection_keepalive": {
                "interval": f"{IDLE_SECONDS}s",
                "timeout": f"{VANISHED_SECONDS - IDLE_SECONDS}s",
            },
        },
        "max_request_headers_kb": limits.max_header_size,
        # So that no path has a second spelling that another route would refuse.
        "normalize_path": True,
        # A model may think for minutes before its first token; `max_stream_duration` of the routes
        # bounds every request instead.
        "stream_idle_timeout": "0s",
        "request_headers_timeout": f"{headers_timeout(limits)}s",
        "request_timeout": f"{limits.body_timeout}s",
        # The default second would be added to every answer that ends with a reset upstream.
        "delayed_close_timeout": "0.1s",
        "drain_timeout": "1s",
        "access_log": access_log(config.access_log),
        "local_reply_config": local_reply_config(limits),
        "http_filters": http_filters(config),
        "route_config": route_config(config),
    }


def _request_ids() -> dict[str, Any]:
    """The client's id is kept as it is, whatever it looks like; others get a UUID."""
    return {
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "request_id_extension": {
            "typed_config": {
                "@type": TYPE + "request_id.uuid.v3.UuidRequestIdConfig",
                # It would write into the client's id whether the request is traced.
                "pack_trace_reason": False,
                # Clients choose theirs, which must not choose whether they are traced.
                "use_request_id_for_trace_sampling": False,
            }
        },
    }
