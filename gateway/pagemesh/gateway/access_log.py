"""The access log: one JSON object per request, without query strings and credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagemesh.gateway.names import TENANT_METADATA, TYPE

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
