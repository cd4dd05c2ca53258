"""The lifecycle of a gRPC server: start, serve, drain, close."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pagemesh.config import ServerConfig
from pagemesh.errors import ConfigError, PagemeshError, UnavailableError
from pagemesh.rpc.boundary import Around, RpcBoundary
from pagemesh.rpc.channels import KEEPALIVE_TIME_MS, SHARED_OPTIONS
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.process import PROCESS_SERVICE, Describer, ProcessServicer
from pagemesh.v1 import process_pb2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SERVER_OPTIONS: Final = (
    *SHARED_OPTIONS,
    # A taken port is an error, not a second server that gets every other connection.
    ("grpc.so_reuseport", 0),
    # Clients ping as often as the channel options say; that is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)

_CLEANUP_TIMEOUT: Final = 1.0
"""Seconds for servicers to give back what ended calls held; they only free things then."""

_CLIENTS_METADATA_BYTES: Final = 16 * 1024 * 1024
"""Twice what a gateway's `--max-header-size` can be: its limit is the one that holds, and says 431."""

_CLIENTS_OPTIONS: Final = (
    # Between these two, gRPC would refuse some calls by chance; by default that begins at 8 KiB.
    ("grpc.max_metadata_size", _CLIENTS_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _CLIENTS_METADATA_BYTES),
)

_FAREWELL_S: Final = 1.0
"""Time for calls to end by themselves, and with words of their own; half of a short grace period."""

DrainHook = Callable[[], Awaitable[None]]


def join_host_port(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; to be called in the main thread's running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _require_free(host: str, port: int) -> None:
    """Raise ConfigError if nobody can listen there. grpc would say so too, but with lines of its own."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As grpc does: connections of an earlier process that are just closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {join_host_port(host, port)}: {error.strerror}"
        ) from error


class _Services(grpc.GenericRpcHandler):
    """The services of a server, which grpc itself lets nobody add after the start."""

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        """Called by the generated `add_…Servicer_to_server`."""
        self._handlers.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: object) -> None:
        """Called likewise; the same methods are found through the generic handlers."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a method, if one of the services has it."""
        for handler in self._handlers:
            found = handler.service(handler_call_details)
            if found is not None:
                return found
        return None


class GrpcServer:
    """One gRPC server with standard health and reflection, and the `Process` service.

    start: the port is bound and health answers NOT_SERVING for "" and every service; all other calls but
    `Process` are refused with UNAVAILABLE. serve: `add` the servicers, then `set_serving`. drain and close: `close` reports
    NOT_SERVING, refuses new calls, runs the drain hooks, gives running calls the rest of the grace
    period, or the farewell if that is more, and cancels what is left. Everything runs on the loop on which the server was made.
    """

    def __init__(
        self,
        config: ServerConfig,
        service_names: Sequence[str],
        around: Around = nullcontext,
        gate: grpc.aio.ServerInterceptor | None = None,
        drain_methods: Collection[str] = (),
        identity: Identity | None = None,
        *,
        serves_clients: bool = False,
    ) -> None:
        """Every call of the services is run in what `around` gives for it, if the gate lets it in.

        `drain_methods` may be called until all drain hooks have ended. With an identity the port speaks TLS alone,
        and callers may call what their certificates allow. Of the mistakes of clients no log says more than which field it was.
        """
        self._config = config
        self._identity = identity
        self._service_names = (*service_names, PROCESS_SERVICE)
        self._drain_methods = drain_methods
        self._services = _Services()
        self._process = ProcessServicer(self._describe)
        self._address = ""
        self._health = health.aio.HealthServicer()
        self._drain_hooks: list[DrainHook] = []
        self._serving = False
        self._closing: asyncio.Task[None] | None = None
        self._boundary = RpcBoundary(self._refusal, around, identity, serves_clients=serves_clients)
        self._server = grpc.aio.server(
            handlers=[self._services],
            interceptors=[self._boundary, *([] if gate is None else [gate])],
            options=[*SERVER_OPTIONS, *(_CLIENTS_OPTIONS if serves_clients else ())],
        )

    async def start(self) -> str:
        """Bind the port and answer health checks; gives the address. ConfigError if it is taken."""
        address = join_host_port(self._config.host, self._config.port)
        _require_free(self._config.host, self._config.port)
        try:
            port = self._listen(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: the port was just taken") from error
        self._address = join_host_port(self._config.host, port)
        self._process.add_to_server(self._services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        await self._set_health(serving=False)
        await self._server.start()
        return self._address

    def _listen(self, address: str) -> int:
        if self._identity is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._identity.server_credentials())

    def add(self, add_servicer: Callable[[Any, Any], None], servicer: object) -> None:
        """Serve one more service; `add_servicer` is the generated `add_…Servicer_to_server`."""
        add_servicer(servicer, self._services)

    @property
    def grace_period(self) -> float:
        """Seconds that drain hooks and running calls have after `close`."""
        return self._config.grace_period

    @property
    def farewell(self) -> float:
        """Seconds that running calls have behind the drain hooks, however late those have ended.

        On a machine that is busy the whole grace period may be over before anybody was told that it is.
        """
        return min(_FAREWELL_S, self._config.grace_period / 2)

    def describe_with(self, describer: Describer) -> None:
        """Have `describer` say in `Process.Describe` what its kind of process knows."""
        self._process.describers.append(describer)

    def show_metrics(self, page: Callable[[Collection[str]], bytes]) -> None:
        """Have `Process.Metrics` give what `page` does for the wanted names."""
        self._process.metrics_page = page

    def on_drain(self, hook: DrainHook) -> None:
        """Have `hook` run when the server begins to stop, after those added before it."""
        self._drain_hooks.append(hook)

    async def set_serving(self) -> None:
        """Accept calls and tell health checks so."""
        self._serving = True
        await self._set_health(serving=True)

    async def close(self) -> None:
        """Drain and stop within about the grace period. Idempotent; later callers wait for the first."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._drain_and_stop())
        await asyncio.shield(self._closing)

    async def _drain_and_stop(self) -> None:
        self._serving = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.grace_period
        await self._health.enter_graceful_shutdown()
        for hook in self._drain_hooks:
            try:
                async with asyncio.timeout_at(deadline):
                    await hook()
            except TimeoutError:
                log.warning("drain hook was cut off by the grace period")
            except Exception:
                log.exception("drain hook failed")
        await self._server.stop(max(deadline - loop.time(), self.farewell))
        await self._boundary.wait_until_idle(_CLEANUP_TIMEOUT)

    async def _set_health(self, *, serving: bool) -> None:
        known = health_pb2.HealthCheckResponse
        status = known.SERVING if serving else known.NOT_SERVING
        for name in ("", *self._service_names):
            await self._health.set(name, status)

    def _describe(self, response: process_pb2.DescribeResponse) -> None:
        response.address = self._address
        if self._identity is not None:
            expires_at = self._identity.certificates.current().expires_at
            response.certificate_expires_at.FromDatetime(expires_at)
        response.state = process_pb2.PROCESS_STATE_STARTING
        if self._serving:
            response.state = process_pb2.PROCESS_STATE_SERVING
        elif self._closing is not None:
            response.state = process_pb2.PROCESS_STATE_DRAINING

    def _refusal(self, method: str) -> PagemeshError | None:
        if self._serving:
            return None
        if self._closing is not None:
            if method in self._drain_methods:
                return None
            return UnavailableError("the server is stopping", reason="DRAINING")
        return UnavailableError("the server is still starting", reason="NOT_READY")
