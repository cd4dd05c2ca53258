"""The key that a client sends, and the certificate that it shows."""

from __future__ import annotations

from pagemesh.config import MeshTlsConfig
from pagemesh.config.environment import api_keys_of_environment
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

Metadata = tuple[tuple[str, str], ...]


def key_metadata(api_key: str | None) -> Metadata:
    """Metadata of every call: the key, or that of the environment; nothing without either."""
    key = api_key or next(iter(api_keys_of_environment()), None)
    return () if key is None else (("authorization", f"Bearer {key}"),)


def client_identity(tls: MeshTlsConfig | None) -> Identity | None:
    """What a client shows a router; None without TLS. ConfigError for files that cannot be used."""
    return None if tls is None else Identity.load(tls, "client", Metrics())
