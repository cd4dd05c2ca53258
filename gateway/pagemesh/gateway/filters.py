"""Envoy's HTTP filters, each as the typed part of the configuration, in the order of a request; and the access log.

The log is one JSON object per request, without query strings and credentials.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from pagemesh.config import CorsConfig, GatewayConfig
from pagemesh.gateway.names import ANTHROPIC_PREFIX, MIB, TENANT_HEADER, TENANT_METADATA, TYPE
from pagemesh.gateway.transcoding import SERVICES, encoded_descriptors

STANDARD_OUTPUT = "-"

_FIELDS = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "trace_id": "%TRACE_ID%",
    "tenant": f"%DYNAMIC_METADATA({':'.join(TENANT_METADATA)})%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "user_agent": "%REQ(USER-AGENT)%",
    "protocol": "%PROTOCOL%",
    "tls": "%DOWNSTREAM_TLS_VERSION%",
    "method": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%",
    "path": "%PATH(NQ)%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "grpc_status": "%GRPC_STATUS%",
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "upstream": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
}


def access_log(path: str | None) -> list[dict[str, Any]]:
    """Envoy's `AccessLog` messages for a file, "-" for the standard output, None for no log."""
    if path is None:
        return []
    kind, settings = "file.v3.FileAccessLog", {"path": str(Path(path).absolute())}
    if path == STANDARD_OUTPUT:
        kind, settings = "stream.v3.StdoutAccessLog", {}
    return [
        {
            "name": "access_log",
            "typed_config": {
                "@type": f"{TYPE}access_loggers.{kind}",
                "log_format": {"json_format": _FIELDS},
                **settings,
            },
        }
    ]


CORS = "envoy.filters.http.cors"
LUA = "envoy.filters.http.lua"
TRANSCODER = "envoy.filters.http.grpc_json_transcoder"

TRANSCODER_TYPE = TYPE + "filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
CORS_POLICY_TYPE = TYPE + "filters.http.cors.v3.CorsPolicy"

# A router's answer is not bounded by the request's size: 256 MiB is far above any completion.
_MAX_RESPONSE_BYTES = 256 * MIB

# Deflate reaches no more, so that a body ends at its limit and never half-way.
_MAX_INFLATE_RATIO = 1032

_COMPRESSED_FROM_BYTES = 1024

_RATE_LIMITS = [
    f"x-ratelimit-{what}-{unit}"
    for what in ("limit", "remaining", "reset")
    for unit in ("requests", "tokens")
]
_EXPOSED_HEADERS = ", ".join(["x-request-id", "retry-after", "x-pagemesh-route", *_RATE_LIMITS])
_PREFLIGHT_SECONDS = 600


def http_filters(config: GatewayConfig) -> list[dict[str, Any]]:
    """All filters; answers pass them from the last to the first."""
    return [
        _filter("envoy.filters.http.compressor", "compressor.v3.Compressor", **_compressor()),
        _filter(
            "envoy.filters.http.header_to_metadata", "header_to_metadata.v3.Config", **_tenant()
        ),
        _filter(CORS, "cors.v3.Cors"),
        _filter(LUA, "lua.v3.Lua", **_lua(config.cors)),
        _filter(
            "envoy.filters.http.decompressor", "decompressor.v3.Decompressor", **_decompressor()
        ),
        _filter(TRANSCODER, "grpc_json_transcoder.v3.GrpcJsonTranscoder", **_transcoder(config)),
        _filter("envoy.filters.http.router", "router.v3.Router"),
    ]


def cors_policy(config: CorsConfig) -> dict[str, Any]:
    """What the CORS filter allows on all routes; it echoes what is asked for where all is allowed."""
    return {
        "@type": CORS_POLICY_TYPE,
        "allow_origin_string_match": [{"exact": origin} for origin in config.origins],
        "allow_methods": _one_line(config.methods),
        "allow_headers": _one_line(config.headers),
        "allow_credentials": config.allow_credentials,
        "expose_headers": _EXPOSED_HEADERS,
        "max_age": str(_PREFLIGHT_SECONDS),
        # An origin that is not allowed is told so by an answer without any of these.
        "forward_not_matching_preflights": False,
    }


def _one_line(values: tuple[str, ...]) -> str:
    return "*" if "*" in values else ", ".join(values)


def _filter(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{TYPE}filters.http.{kind}", **settings}}


def _compressor() -> dict[str, Any]:
    return {
        "compressor_library": {
            "name": "gzip",
            "typed_config": {"@type": TYPE + "compression.gzip.compressor.v3.Gzip"},
        },
        # Of Envoy's own choice of types: JSON and text, but neither event streams nor gRPC.
        "response_direction_config": {
            "common_config": {"min_content_length": _COMPRESSED_FROM_BYTES}
        },
    }


def _decompressor() -> dict[str, Any]:
    never = {"default_value": False, "runtime_key": "gateway.decompress_responses"}
    return {
        "decompressor_library": {
            "name": "gzip",
            "typed_config": {
                "@type": TYPE + "compression.gzip.decompressor.v3.Gzip",
                "max_inflate_ratio": _MAX_INFLATE_RATIO,
            },
        },
        "request_direction_config": {"advertise_accept_encoding": False},
        "response_direction_config": {"common_config": {"enabled": never}},
    }


def _tenant() -> dict[str, Any]:
    """Keeps the router's word on whose request it was for the access log, and from the client."""
    namespace, key = TENANT_METADATA
    return {
        "response_rules": [
            {
                "header": TENANT_HEADER,
                "on_header_present": {"metadata_namespace": namespace, "key": key},
                "remove": True,
            }
        ]
    }


def _lua(cors: CorsConfig) -> dict[str, Any]:
    script = resources.files("pagemesh.gateway").joinpath("status.lua").read_text()
    # JSON's strings are Lua's: settings have printable ASCII alone.
    origins = ", ".join(f"[{json.dumps(origin)}] = true" for origin in cors.origins)
    settings = [
        f"local allowed_origins = {{{origins}}}",
        f"local allow_credentials = {json.dumps(cors.allow_credentials)}",
        f"local anthropic_prefix = {json.dumps(ANTHROPIC_PREFIX)}",
        f"local exposed_headers = {json.dumps(_EXPOSED_HEADERS)}",
    ]
    return {"default_source_code": {"inline_string": "\n".join([*settings, script])}}


def _transcoder(config: GatewayConfig) -> dict[str, Any]:
    return {
        "proto_descriptor_bin": encoded_descriptors(),
        "services": [service.full_name for service in SERVICES],
        "match_incoming_request_route": True,
        "ignore_unknown_query_parameters": True,
        "request_validation_options": {"reject_unknown_method": True},
        # openai sends /v1/models/org%2Fname.
        "url_unescape_spec": "ALL_CHARACTERS",
        "max_request_body_size": config.limits.max_body_size * MIB,
        "max_response_body_size": _MAX_RESPONSE_BYTES,
    }
