"""Settings of `pagemesh doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pagemesh.addresses import parse_addresses
from pagemesh.config import require
from pagemesh.config.connections import MeshTlsConfig
from pagemesh.config.environment import require_seconds

DEFAULT_URL: Final = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class DoctorConfig:
    """Where the mesh is, and how it is asked."""

    url: str | None = None
    """Where clients reach the gateway, as http://host:port or https://host:port. Its router names everybody else.
    Without this and --kvstore, http://127.0.0.1:8000, where `pagemesh up` serves."""

    kvstore: str | None = None
    """host:port of the kvstore, or host:port,host:port of its replicas, for a mesh whose gateway or routers do not
    answer, or cannot be reached from here."""

    api_key: str | None = None
    """Key for routers that ask for one; that of PAGEMESH_API_KEY in the environment when unset."""

    ca_cert: str | None = None
    """PEM file with the authorities that the gateway's certificate is checked against; those of the system when
    unset."""

    mesh: MeshTlsConfig = field(default_factory=MeshTlsConfig)

    timeout: float = 5.0
    """Seconds for all questions together; who has not answered by then is said to be silent."""

    json: bool = False
    """Print one JSON object instead of lines for people."""

    def __post_init__(self) -> None:
        if self.url is not None:
            require(_is_url(self.url), "--url", self.url, "http://host:port or https://host:port")
        if self.kvstore is not None:
            parse_addresses("--kvstore", self.kvstore)
        require_seconds("--timeout", self.timeout, most=600)
        require(self.timeout >= 1, "--timeout", self.timeout, "at least 1 second")

    @property
    def gateway(self) -> str | None:
        """The gateway to ask; None when only kvstores are named."""
        return self.url or (None if self.kvstore else DEFAULT_URL)

    @property
    def kvstores(self) -> tuple[str, ...]:
        """The kvstores that are named."""
        return () if self.kvstore is None else parse_addresses("--kvstore", self.kvstore)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not parts.query and not parts.username
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_bare
