"""Envoy's route table: what goes to the routers, and what is refused before its body is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pagemesh.config import GatewayConfig
from pagemesh.gateway.filters import CORS, LUA, TRANSCODER, TRANSCODER_TYPE, cors_policy
from pagemesh.gateway.names import (
    CLUSTER,
    CREDENTIALS,
    MIB,
    PRIVATE_HEADERS,
    TYPE,
)
from pagemesh.gateway.transcoding import HttpRoute, http_routes

# Of metrics, the routers know whether a key is wanted.
_OPEN_PATHS = ("/", "/health", "/ping", "/ready", "/version", "/openapi.json", "/metrics")
_OPEN_FOLDER = "/console/"
_OPEN_SERVICE = "/grpc.health.v1.Health/"

_KEPT_BODY_BYTES = MIB

_ANY = {"prefix": "/"}
_NATIVE = {"prefix": "/", "grpc": {}}

# The transcoder would refuse with 404, or wait for the body, what a route without a router answers.
_NOT_TRANSCODED = {TRANSCODER: {"@type": TRANSCODER_TYPE, "proto_descriptor_bin": ""}}
_WITHOUT_LUA = {LUA: {"@type": TYPE + "filters.http.lua.v3.LuaPerRoute", "disabled": True}}


def route_config(config: GatewayConfig) -> dict[str, Any]:
    """Envoy's `RouteConfiguration`, of whose routes the first that matches is taken."""
    everything: dict[str, Any] = {
        "name": "all",
        "domains": ["*"],
        "routes": _routes(config),
        "retry_policy": _retry_policy(),
        # Longer bodies are not kept, and cannot be sent to another router.
        "request_body_buffer_limit": _KEPT_BODY_BYTES,
    }
    if config.cors.origins:
        everything["typed_per_filter_config"] = {CORS: cors_policy(config.cors)}
        # What one page may read must not be kept for another.
        everything["response_headers_to_add"] = [{"header": {"key": "vary", "value": "origin"}}]
    return {
        "name": "gateway",
        "request_headers_to_remove": list(PRIVATE_HEADERS),
        "virtual_hosts": [everything],
    }


def _routes(config: GatewayConfig) -> list[dict[str, Any]]:
    http = http_routes()
    routes: list[dict[str, Any]] = []
    if config.cors.origins:
        # The CORS filter answers, but only where a route leads to a cluster.
        routes.append(_forward(config, _match(_ANY, *_preflight())))
    if config.api_key_required:
        open_service = {"prefix": _OPEN_SERVICE, "grpc": {}}
        routes += [
            _forward(config, open_service, _WITHOUT_LUA),
            _refuse(401, _match(_NATIVE, *_no_credentials()), _WITHOUT_LUA),
            _refuse(401, _match(_ANY, *_no_credentials(), _not_open())),
        ]
    routes += [
        _forward(config, _NATIVE, _WITHOUT_LUA),
        _refuse(413, _match(_ANY, _longer_than(config.limits.max_body_size * MIB))),
        _refuse(415, _match(_ANY, *_not_gzip())),
    ]
    routes += [
        _forward(config, _match(_path(route), _method(method)))
        for route in http
        for method in route.methods
    ]
    routes += [answer for route in http for answer in _other_methods(route)]
    return routes + [_without_slash(route) for route in http if not route.path.endswith(("/", "}"))]


def _forward(
    config: GatewayConfig, match: dict[str, Any], filters: dict[str, Any] | None = None
) -> dict[str, Any]:
    route: dict[str, Any] = {
        "match": match,
        "route": {
            "cluster": CLUSTER,
            # 0 is none: the next setting bounds every request instead.
            "timeout": "0s",
            "max_stream_duration": {"max_stream_duration": f"{config.limits.max_request_time}s"},
        },
    }
    return {**route, "typed_per_filter_config": filters} if filters else route


def _refuse(
    status: int, match: dict[str, Any], filters: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "match": match,
        "direct_response": {"status": status},
        "typed_per_filter_config": {**_NOT_TRANSCODED, **(filters or {})},
    }


def _other_methods(route: HttpRoute) -> Sequence[dict[str, Any]]:
    """Answers to OPTIONS and, below, to what the route does not know; both say what it does."""
    head = ["HEAD"] if "GET" in route.methods else []
    methods = ", ".join([*route.methods, *head, "OPTIONS"])
    allow = {"response_headers_to_add": [{"header": {"key": "allow", "value": methods}}]}
    asked = _match(_path(route), _method("OPTIONS"))
    return [{**_refuse(204, asked), **allow}, {**_refuse(405, _path(route)), **allow}]


def _without_slash(route: HttpRoute) -> dict[str, Any]:
    """Sends those away who put a slash behind a path, as vLLM does: their clients ask once more without it."""
    return {
        "match": {"path": f"{route.path}/"},
        "redirect": {"path_redirect": route.path, "response_code": "TEMPORARY_REDIRECT"},
        "typed_per_filter_config": _NOT_TRANSCODED,
    }


def _match(path: dict[str, Any], *headers: dict[str, Any]) -> dict[str, Any]:
    return {**path, "headers": list(headers)}


def _path(route: HttpRoute) -> dict[str, Any]:
    if route.regex is None:
        return {"path": route.path}
    return {"safe_regex": {"regex": route.regex}}


def _method(name: str) -> dict[str, Any]:
    # HEAD is GET without the body, which the Lua script makes of it.
    match = {"safe_regex": {"regex": "GET|HEAD"}} if name == "GET" else {"exact": name}
    return {"name": ":method", "string_match": match}


def _preflight() -> Sequence[dict[str, Any]]:
    asked = ("origin", "access-control-request-method")
    return [_method("OPTIONS"), *({"name": name, "present_match": True} for name in asked)]


def _no_credentials() -> Sequence[dict[str, Any]]:
    return [{"name": name, "present_match": False} for name in CREDENTIALS]


def _not_open() -> dict[str, Any]:
    paths = "|".join(map(re.escape, _OPEN_PATHS))
    match = {"safe_regex": {"regex": rf"({paths}|{_OPEN_FOLDER}[^/?]+)(\?.*)?"}}
    return {"name": ":path", "string_match": match, "invert_match": True}


def _longer_than(num_bytes: int) -> dict[str, Any]:
    return {"name": "content-length", "range_match": {"start": num_bytes + 1, "end": 2**63 - 1}}


def _not_gzip() -> Sequence[dict[str, Any]]:
    known = {"safe_regex": {"regex": "(?i)gzip|identity"}}
    return [
        {"name": "content-encoding", "present_match": True},
        {"name": "content-encoding", "string_match": known, "invert_match": True},
    ]


def _retry_policy() -> dict[str, Any]:
    previous_hosts = {"@type": TYPE + "retry.host.previous_hosts.v3.PreviousHostsPredicate"}
    return {
        # Only failures before the answer has begun, of which a reset is one whose router is frozen or was
        # killed; "unavailable" is the router's own word that another one should be asked, and "cancelled"
        # gRPC's for what comes as it closes.
        "retry_on": "connect-failure,refused-stream,unavailable,cancelled,reset",
        "num_retries": 3,
        "host_selection_retry_max_attempts": 8,
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": previous_hosts}
        ],
    }
