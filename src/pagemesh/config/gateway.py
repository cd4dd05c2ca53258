"""Settings of the gateway: where it listens, TLS, CORS, and what it takes from a client."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from pagemesh.config.connections import MeshTlsConfig, TracesConfig
from pagemesh.config.environment import require, require_seconds
from pagemesh.errors import ConfigError

_WEEK = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for clients, under the names that uvicorn and vLLM use."""

    ssl_certfile: str | None = None
    """PEM file with the certificate and those that signed it; with it, clients are served by TLS alone. A file
    that is replaced (by a rename, as `mv` does) is used for new connections without a restart."""

    ssl_keyfile: str | None = None
    """PEM file with the certificate's private key, which must not be encrypted; --ssl-certfile when unset."""

    ssl_ca_certs: str | None = None
    """PEM file with the authorities whose client certificates are accepted."""

    ssl_cert_reqs: Literal[0, 1, 2] | None = None
    """Client certificates: 0 asks for none, 1 checks those that come, 2 requires one. Unset, it is 2 with
    --ssl-ca-certs."""

    def __post_init__(self) -> None:
        if self.ssl_certfile is None:
            for flag, value in (
                ("--ssl-keyfile", self.ssl_keyfile),
                ("--ssl-ca-certs", self.ssl_ca_certs),
                ("--ssl-cert-reqs", self.ssl_cert_reqs),
            ):
                require(value is None, flag, value, "unset without --ssl-certfile")
        elif self.ssl_ca_certs is None and self.ssl_cert_reqs:
            raise ConfigError(
                f"--ssl-cert-reqs is {self.ssl_cert_reqs}, which needs --ssl-ca-certs to check with"
            )

    @property
    def client_certificates(self) -> Literal["ignored", "optional", "required"]:
        """What is done about clients' certificates."""
        if self.ssl_ca_certs is None or self.ssl_cert_reqs == 0:
            return "ignored"
        return "optional" if self.ssl_cert_reqs == 1 else "required"


@dataclass(frozen=True, slots=True)
class CorsConfig:
    """Which web pages of other origins may call the API. As in vLLM, each value may also be a JSON list."""

    allowed_origins: tuple[str, ...] = ("*",)
    """Origins whose pages may call, such as https://chat.example; * is every one, and no value none."""

    allowed_methods: tuple[str, ...] = ("*",)
    """HTTP methods that they may use; * is every one."""

    allowed_headers: tuple[str, ...] = ("*",)
    """Request headers that they may set; * is every one."""

    allow_credentials: bool = False
    """Let browsers send cookies and the like along."""

    def __post_init__(self) -> None:
        # Read once, so that a wrong list is refused when the settings are made.
        _ = (self.origins, self.methods, self.headers)

    @property
    def origins(self) -> tuple[str, ...]:
        """The allowed origins. Raises ConfigError for a list that is none."""
        return _listed("--allowed-origins", self.allowed_origins)

    @property
    def methods(self) -> tuple[str, ...]:
        """The allowed methods. Raises ConfigError for a list that is none."""
        return _listed("--allowed-methods", self.allowed_methods)

    @property
    def headers(self) -> tuple[str, ...]:
        """The allowed request headers. Raises ConfigError for a list that is none."""
        return _listed("--allowed-headers", self.allowed_headers)


def _listed(flag: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) != 1 or not values[0].startswith("["):
        listed: object = list(values)
    else:
        try:
            listed = json.loads(values[0])
        except json.JSONDecodeError:
            listed = None
    if not isinstance(listed, list) or not all(
        isinstance(value, str) and value and value.isascii() and value.isprintable()
        for value in listed
    ):
        raise ConfigError(f"{flag} is {' '.join(values)!r}, but must be words or a JSON list")
    return tuple(listed)


@dataclass(frozen=True, slots=True)
class HttpLimitsConfig:
    """What a client may take of the gateway before it is refused."""

    max_body_size: int = 32
    """MiB that a request's body may have, after decompression; larger ones are refused with 413."""

    max_header_size: int = 60
    """KiB that a request's headers may have together; larger ones are refused with 431."""

    max_connections: int = 16384
    """Open connections of clients; more are closed as they come."""

    max_concurrent_streams: int = 1024
    """Requests at once on one HTTP/2 connection; clients wait with more."""

    body_timeout: float = 120.0
    """Seconds that a client may take to send its request; then it is given up with 408."""

    max_request_time: float = 660.0
    """Seconds after which a request is ended even when its router no longer answers."""

    def __post_init__(self) -> None:
        for flag, value, most in (
            ("--max-body-size", self.max_body_size, 1024),
            ("--max-header-size", self.max_header_size, 8192),
            ("--max-connections", self.max_connections, 2**31 - 1),
            ("--max-concurrent-streams", self.max_concurrent_streams, 2**31 - 1),
        ):
            require(1 <= value <= most, flag, value, f"between 1 and {most}")
        require_seconds("--body-timeout", self.body_timeout, most=_WEEK)
        require_seconds("--max-request-time", self.max_request_time, most=_WEEK)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of the gateway: Envoy in front of the routers."""

    routers: tuple[str, ...] = ()
    """host:port of each router."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 8000
    """HTTP port."""

    metrics_port: int | None = None
    """Port for Prometheus, on the same address: Envoy's metrics at /metrics and /stats/prometheus, and nothing else of
    Envoy. By TLS, for whoever has a certificate of the mesh, when --mesh-cert is set. Unset serves none."""

    local_socket: str | None = None
    """Path of a unix socket that serves the same, without TLS, to processes of this user; unset serves none."""

    admin_socket: str | None = None
    """Path of a unix socket for Envoy's admin interface; unset takes one in a folder that only
    this user can enter, and none in what is printed."""

    access_log: str | None = None
    """File that gets one JSON object per request, - for the standard output; unset writes none."""

    log_format: Literal["json", "console"] = "json"
    """What Envoy itself has to say: one JSON object per line, or lines for people."""

    api_key_required: bool = False
    """Refuse with 401 what has neither of the headers authorization and x-api-key, before its body is read; the
    routers check the key. Open to all are / with its page, /health, /ready, /version and what browsers ask beforehand;
    of /metrics the routers' --open-metrics says whether it is."""

    concurrency: int = 1
    """Worker threads."""

    grace_period: float = 3.0
    """Seconds that running requests get to finish after SIGTERM."""

    print_config: tuple[Literal["yaml", "json"], ...] | None = None
    """Print the whole configuration for an Envoy of your own, and end; as YAML, or as JSON when that follows."""

    tls: TlsConfig = field(default_factory=TlsConfig)
    cors: CorsConfig = field(default_factory=CorsConfig)
    limits: HttpLimitsConfig = field(default_factory=HttpLimitsConfig)
    mesh: MeshTlsConfig = field(default_factory=MeshTlsConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)

    def __post_init__(self) -> None:
        require(len(self.routers) > 0, "--routers", self.routers, "one or more host:port")
        require(1 <= self.port <= 65535, "--port", self.port, "between 1 and 65535")
        if self.metrics_port is not None:
            port = self.metrics_port
            require(1 <= port <= 65535, "--metrics-port", port, "between 1 and 65535")
            require(port != self.port, "--metrics-port", port, "another one than --port")
            if self.print_config is not None and self.admin_socket is None:
                raise ConfigError(
                    f"--metrics-port is {port}, which needs --admin-socket in a printed configuration: what is "
                    "shown comes from there"
                )
        require(self.concurrency > 0, "--concurrency", self.concurrency, "positive")
        require(
            0 <= self.grace_period <= _WEEK,
            "--grace-period",
            self.grace_period,
            f"between 0 and {_WEEK} seconds",
        )
        require(
            self.print_config is None or len(self.print_config) <= 1,
            "--print-config",
            " ".join(self.print_config or ()),
            "yaml or json",
        )
