"""Serves the metrics of a process over HTTP, or HTTPS to whoever has a certificate of the mesh."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from threading import Lock, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from pagemesh.errors import ConfigError
from pagemesh.identity.certificates import Certificates
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PATIENCE: Final = 10.0
"""Seconds for which a connection that says nothing keeps its thread."""


class MetricsServer:
    """Serves a registry on threads of its own until it is closed."""

    def __init__(
        self, host: str, port: int, metrics: Metrics, identity: Identity | None = None
    ) -> None:
        """Listen; port 0 takes a free one. ConfigError if the port is taken."""
        try:
            family, _, _, _, (address, *_) = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = make_server(
                str(address),
                port,
                _TextPage(metrics.registry),
                _SERVERS[family],
                handler_class=_QuietHandler,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}"
            ) from error
        self._server.contexts = None if identity is None else _Contexts(identity.certificates)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port of the HTTP server."""
        return "{}:{}".format(*self._server.server_address[:2])

    def close(self) -> None:
        """Stop listening and wait for the thread. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _TextPage:
    """The page in Prometheus' text format, whatever else is asked for.

    In OpenMetrics, which Prometheus prefers, the client library writes underscores for the colons in names, and
    nobody would find `vllm:num_requests_running`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        page: Iterable[bytes] = self._app(
            {**environ, "HTTP_ACCEPT": "text/plain;version=0.0.4"}, start_response
        )
        return page


class _Contexts:
    """How TLS is spoken on a new connection: with the certificate of now."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._lock = Lock()
        self._generation = certificates.current().generation
        self._context = self._make()

    def present(self) -> ssl.SSLContext:
        """The context of now; the last that could be made, while files are being replaced."""
        with self._lock:
            generation = self._certificates.current().generation
            if generation != self._generation:
                try:
                    self._context, self._generation = self._make(), generation
                except (OSError, ssl.SSLError) as error:
                    _log.warning("metrics_certificate_kept", error=str(error))
            return self._context

    def _make(self) -> ssl.SSLContext:
        certificate, key, authorities = self._certificates.paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Server(ThreadingWSGIServer):
    """Shakes hands in the thread of a connection: nobody who connects and says nothing stops the others."""

    contexts: _Contexts | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.settimeout(_PATIENCE)
        if self.contexts is None:
            return connection, address
        secured = self.contexts.present().wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return secured, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that was refused or went away is no fault of this process."""
        _log.debug("metrics_connection_failed", client=client_address, exc_info=True)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


_SERVERS: Final = {socket.AF_INET: _Server, socket.AF_INET6: _ServerV6}


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
