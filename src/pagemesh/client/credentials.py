"""The key that a client sends, and the certificate that it shows."""

from __future__ import annotations

import grpc

from pagemesh.config import MeshTlsConfig
from pagemesh.config.environment import api_keys_of_environment
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_blocking_channel, open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

Metadata = tuple[tuple[str, str], ...]


def key_metadata(api_key: str | None) -> Metadata:
    """Metadata of every call: the key, or that of the environment; nothing without either."""
    key = api_key or next(iter(api_keys_of_environment()), None)
    return () if key is None else (("authorization", f"Bearer {key}"),)


def open_async(address: str, tls: MeshTlsConfig | None) -> grpc.aio.Channel:
    """A channel to host:port for asyncio, to a router where TLS is asked for. ConfigError for bad files."""
    return open_channel(address, MeshRole.ROUTER, _identity(tls))


def open_blocking(address: str, tls: MeshTlsConfig | None) -> grpc.Channel:
    """Likewise, for threads that wait."""
    return open_blocking_channel(address, MeshRole.ROUTER, _identity(tls))


def _identity(tls: MeshTlsConfig | None) -> Identity | None:
    return None if tls is None else Identity.load(tls, MeshRole.CLIENT, Metrics())
