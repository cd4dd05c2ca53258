"""What the gateway answers to clients: over HTTP, and which router answers through it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import grpc

from pagemesh.cli.doctor.asking import describe, fault_of
from pagemesh.cli.doctor.facts import Certificate, Gateway, Reading
from pagemesh.cli.doctor.settings import DoctorConfig
from pagemesh.client.credentials import Metadata
from pagemesh.errors import ConfigError
from pagemesh.rpc.channels import channel_options, open_channel


async def ask_gateway(
    url: str, config: DoctorConfig, metadata: Metadata, deadline: float
) -> tuple[Gateway, Reading | None]:
    """What it says, and what a router says through it; asked until the loop's time `deadline`."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    trust = _trust(config.ca_cert) if parts.scheme == "https" else None
    # A router that is silent uses up the first half, and has the second one to say so through gRPC.
    seconds = (deadline - loop.time()) / 2
    gateway = await _in_time(
        lambda: _ask_http(url, parts, trust, seconds), 2 * seconds, Gateway(url)
    )
    if gateway.fault or (gateway.certificate is not None and gateway.certificate.fault):
        return gateway, None
    async with _open(parts, config.ca_cert) as channel:
        try:
            return gateway, await describe(channel, deadline - loop.time(), metadata)
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            return replace(gateway, router_fault=fault_of(error), router_detail=details), None


def _open(parts: SplitResult, ca_cert: str | None) -> grpc.aio.Channel:
    address = f"{_bracketed(parts)}:{_port(parts)}"
    if parts.scheme == "http":
        return open_channel(address)
    roots = Path(ca_cert).read_bytes() if ca_cert else None
    credentials = grpc.ssl_channel_credentials(roots)
    return grpc.aio.secure_channel(address, credentials, options=channel_options())


def _bracketed(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _trust(ca_cert: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_cert)
    except OSError as error:
        raise ConfigError(
            f"--ca-cert is {ca_cert!r}, which cannot be used: {error.strerror or error}"
        ) from error


async def _in_time(ask: Callable[[], Gateway], seconds: float, empty: Gateway) -> Gateway:
    """What `ask` gives, or that it gave nothing in time.

    Its thread is one that nobody waits for at the end: a name server may take its time.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Gateway] = loop.create_future()

    def give(gateway: Gateway) -> None:
        if not answer.done():
            answer.set_result(gateway)

    def run() -> None:
        gateway = ask()
        # The loop may be closed by now: then nobody wants to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(give, gateway)

    threading.Thread(target=run, name="gateway", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        return replace(empty, fault=_late(seconds))


def _ask_http(
    url: str, parts: SplitResult, trust: ssl.SSLContext | None, seconds: float
) -> Gateway:
    gateway = Gateway(url)
    connection = _connection(parts, trust, seconds)
    try:
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            return replace(gateway, certificate=Certificate(fault=error.verify_message))
        if isinstance(connection.sock, ssl.SSLSocket):
            gateway = replace(gateway, certificate=_certificate(connection.sock))
        # The gateway's own answer, for which it needs no router.
        _ask(connection, "OPTIONS", "/health")
        gateway = replace(gateway, answers=True)
        health_status, health = _ask(connection, "GET", "/health")
        ready_status, ready = _ask(connection, "GET", "/ready")
        return replace(
            gateway,
            health_status=health_status,
            health=health,
            ready_status=ready_status,
            ready=ready,
        )
    except (OSError, http.client.HTTPException) as error:
        # What came after its own answer is the router's silence, and the next question's to find out.
        return gateway if gateway.answers else replace(gateway, fault=_why(error, seconds))
    finally:
        connection.close()


def _connection(
    parts: SplitResult, trust: ssl.SSLContext | None, seconds: float
) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", _port(parts)
    if trust is None:
        return http.client.HTTPConnection(host, port, timeout=seconds)
    return http.client.HTTPSConnection(host, port, timeout=seconds, context=trust)


def _certificate(socket: ssl.SSLSocket) -> Certificate:
    shown: Any = socket.getpeercert() or {}
    return Certificate(seconds_left=ssl.cert_time_to_seconds(shown["notAfter"]) - time.time())


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str
) -> tuple[int, dict[str, Any]]:
    connection.request(method, path)
    answer = connection.getresponse()
    try:
        read = json.loads(answer.read())
    except ValueError:
        read = {}
    return answer.status, read if isinstance(read, dict) else {}


def _late(seconds: float) -> str:
    return f"it takes connections, but did not answer within {seconds:.1f} s"


def _why(error: Exception, seconds: float) -> str:
    match error:
        case ConnectionRefusedError():
            return "nobody listens there"
        case TimeoutError():
            return _late(seconds)
        case ssl.SSLError(reason=str(reason)) if "CERTIFICATE_REQUIRED" in reason:
            return "it asks clients for a certificate, and pagemesh doctor has none"
        case ssl.SSLError(reason=reason):
            return f"it does not speak TLS as expected ({reason or error})"
        case http.client.HTTPException():
            return f"it does not speak HTTP as expected ({error or type(error).__name__})"
        case _:
            return str(getattr(error, "strerror", None) or error)
