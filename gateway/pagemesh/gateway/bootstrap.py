"""Envoy's whole configuration as one JSON-like dictionary, made from `GatewayConfig`."""

from __future__ import annotations

from importlib import resources
from typing import Any

from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.replies import local_reply_config
from pagemesh.gateway.transcoding import SERVICES, HttpRoute, encoded_descriptors, http_routes

_TYPE = "type.googleapis.com/envoy.extensions."
_TRANSCODER = _TYPE + "filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
_CLUSTER = "routers"
_MIB = 1024 * 1024

# Set by the gateway or the router alone; a client must not forge them.
_PRIVATE_HEADERS = ["x-http-status", "x-client-id"]

# A router's answer is not bounded by the request's size: 256 MiB is far above any completion.
_MAX_RESPONSE_BYTES = 256 * _MIB


def bootstrap(config: GatewayConfig) -> dict[str, Any]:
    """Envoy's `Bootstrap` message. Raises ConfigError for a router that is not host:port."""
    settings: dict[str, Any] = {
        "static_resources": {"listeners": [_listener(config)], "clusters": [_cluster(config)]},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": _TYPE + "resource_monitors.downstream_connections.v3"
                        ".DownstreamConnectionsConfig",
                        "max_active_downstream_connections": 16384,
                    },
                }
            ]
        },
    }
    if config.admin_socket is not None:
        settings["admin"] = {"address": {"pipe": {"path": config.admin_socket, "mode": 0o600}}}
    return settings


def _listener(config: GatewayConfig) -> dict[str, Any]:
    return {
        "name": "http",
        "address": {"socket_address": {"address": config.host, "port_value": config.port}},
        # Without this a second gateway on the same port starts happily and takes half the requests.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": _MIB,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(config),
                    }
                ]
            }
        ],
    }


def _connection_manager(config: GatewayConfig) -> dict[str, Any]:
    return {
        "@type": _TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "server_name": "pagemesh",
        # A model may think for minutes before its first token; `max_stream_duration` of the routes
        # bounds every request instead.
        "stream_idle_timeout": "0s",
        "request_headers_timeout": "10s",
        # The default second would be added to every answer that ends with a reset upstream.
        "delayed_close_timeout": "0.1s",
        "drain_timeout": "1s",
        "access_log": _access_log(config),
        "local_reply_config": local_reply_config(),
        "http_filters": [_lua(), _transcoder(config), _router()],
        "route_config": {
            "name": "gateway",
            "request_headers_to_remove": _PRIVATE_HEADERS,
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": _routes(config)},
            ],
        },
    }


def _lua() -> dict[str, Any]:
    script = resources.files("pagemesh.gateway").joinpath("status.lua").read_text()
    return {
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": _TYPE + "filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": script},
        },
    }


def _transcoder(config: GatewayConfig) -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.grpc_json_transcoder",
        "typed_config": {
            "@type": _TRANSCODER,
            "proto_descriptor_bin": encoded_descriptors(),
            "services": [service.full_name for service in SERVICES],
            "match_incoming_request_route": True,
            "ignore_unknown_query_parameters": True,
            "request_validation_options": {"reject_unknown_method": True},
            # openai sends /v1/models/org%2Fname.
            "url_unescape_spec": "ALL_CHARACTERS",
            "max_request_body_size": config.max_body_size * _MIB,
            "max_response_body_size": _MAX_RESPONSE_BYTES,
        },
    }


def _router() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": _TYPE + "filters.http.router.v3.Router"},
    }


def _routes(config: GatewayConfig) -> list[dict[str, Any]]:
    native = {
        "match": {"prefix": "/", "grpc": {}},
        "route": _action(config),
        "typed_per_filter_config": {
            "envoy.filters.http.lua": {
                "@type": _TYPE + "filters.http.lua.v3.LuaPerRoute",
                "disabled": True,
            }
        },
    }
    http = http_routes()
    return [
        native,
        *({"match": _match(route), "route": _action(config)} for route in http),
        *(_method_not_allowed(route) for route in http),
    ]


def _match(route: HttpRoute) -> dict[str, Any]:
    method = {"name": ":method", "string_match": {"exact": route.method}}
    return {**_path(route), "headers": [method]}


def _path(route: HttpRoute) -> dict[str, Any]:
    return {"prefix" if route.is_prefix else "path": route.path}


def _method_not_allowed(route: HttpRoute) -> dict[str, Any]:
    return {
        "match": _path(route),
        "direct_response": {"status": 405},
        "response_headers_to_add": [{"header": {"key": "allow", "value": route.method}}],
        # An override without services: the transcoder would refuse the request with 404 before.
        "typed_per_filter_config": {
            "envoy.filters.http.grpc_json_transcoder": {
                "@type": _TRANSCODER,
                "proto_descriptor_bin": "",
            }
        },
    }


def _action(config: GatewayConfig) -> dict[str, Any]:
    return {
        "cluster": _CLUSTER,
        "timeout": "0s",
        "max_stream_duration": {"max_stream_duration": f"{config.max_request_time}s"},
        "retry_policy": {
            # Only failures before a router took the request up; "unavailable" is the router's own
            # word that another one should be asked.
            "retry_on": "connect-failure,refused-stream,unavailable,reset-before-request",
            "num_retries": 3,
            "host_selection_retry_max_attempts": 8,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": _TYPE + "retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
        },
    }


def _cluster(config: GatewayConfig) -> dict[str, Any]:
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 16384)
    return {
        "name": _CLUSTER,
        # One host per address that a router's name has now: replicas behind a headless service.
        "cluster_type": {
            "name": "envoy.clusters.dns",
            "typed_config": {
                "@type": _TYPE + "clusters.dns.v3.DnsCluster",
                "dns_refresh_rate": "5s",
            },
        },
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": _MIB,
        # Refuse at once when no router is healthy, instead of trying unhealthy ones.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # Admission is the router's: it answers 429 long before these are reached.
        "circuit_breakers": {"thresholds": [{**limits, "max_retries": 64}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _TYPE + "upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        # Notices within two seconds a router that froze, or whose machine or network is
                        # gone, in the middle of a stream. Envoy makes intervals up to 15 % longer.
                        "connection_keepalive": {"interval": "0.9s", "timeout": "0.9s"}
                    }
                },
            }
        },
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_interval": "0.25s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        "load_assignment": {
            "cluster_name": _CLUSTER,
            "endpoints": [{"lb_endpoints": [_endpoint(router) for router in config.routers]}],
        },
    }


def _endpoint(router: str) -> dict[str, Any]:
    host, _, port = router.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--routers has {router!r}, but must have host:port")
    address = {"address": host.strip("[]"), "port_value": int(port)}
    return {"endpoint": {"address": {"socket_address": address}}}


def _access_log(config: GatewayConfig) -> list[dict[str, Any]]:
    if config.access_log is None:
        return []
    fields = {
        "time": "%START_TIME%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%",
        "path": "%PATH(NQ)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "grpc_status": "%GRPC_STATUS%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    }
    return [
        {
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": _TYPE + "access_loggers.file.v3.FileAccessLog",
                "path": config.access_log,
                "log_format": {"json_format": fields},
            },
        }
    ]
