"""Who this process is to others, and who others are to it: certificates as gRPC takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

import grpc
import structlog

from pagemesh.config.connections import MeshTlsConfig
from pagemesh.errors import PermissionDeniedError
from pagemesh.identity.certificates import Certificates, Credentials
from pagemesh.identity.roles import MeshRole, may_call, roles_of
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.process import CALLS_REFUSED, CERTIFICATE_EXPIRY

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AuthContext = Mapping[str, Iterable[bytes]]

_TRANSPORT: Final = "transport_security_type"

_PEER_NAMES: Final = "peer_dns"
"""Under which gRPC gives the DNS names of a peer's certificate."""


class Identity:
    """The certificate of a process at work. Safe to use from any thread."""

    def __init__(self, certificates: Certificates, metrics: Metrics) -> None:
        self.certificates = certificates
        self._refused = metrics.counter(CALLS_REFUSED)
        expiry = metrics.gauge(CERTIFICATE_EXPIRY)
        expiry.set_function(lambda: certificates.current().expires_at.timestamp())

    @classmethod
    def load(cls, config: MeshTlsConfig, role: str, metrics: Metrics) -> Self | None:
        """From the settings of a process that is `role`; None without TLS, ConfigError for bad files."""
        return cls(Certificates(config, MeshRole(role)), metrics) if config.is_on else None

    @property
    def generation(self) -> int:
        """Changes with the files: what was opened under another one shows another certificate."""
        return self.certificates.current().generation

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port that asks callers for their certificates, and reads its own anew when they change."""
        first = shown = self.certificates.current()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            present = self.certificates.current()
            if present.generation == shown.generation:
                return None
            shown = present
            return _server_configuration(present)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(first),
            newer,  # type: ignore[arg-type]  # None is "as before", which the stubs do not know
            require_client_authentication=True,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one channel, which shows the present certificate as long as it lives."""
        present = self.certificates.current()
        return grpc.ssl_channel_credentials(present.authorities, present.key, present.certificate)

    def check(self, method: str, peer: AuthContext) -> None:
        """Raise PermissionDeniedError, and count it, unless who is at the other end may call the method."""
        names = _names(peer)
        if may_call(method, roles_of(names)):
            return
        self._refused.labels(method, ",".join(sorted(roles_of(names)))).inc()
        caller = ", ".join(names) or "somebody whose certificate has no name"
        _log.warning("call_refused", method=method, caller=caller)
        raise PermissionDeniedError(f"{caller} may not call {method}")


def require_role(peer: AuthContext, role: MeshRole, act: str) -> None:
    """Raise PermissionDeniedError unless a peer is `role`, on a port that speaks TLS; `act` is what it wants to do."""
    speaks_tls = b"ssl" in peer.get(_TRANSPORT, ())
    if speaks_tls and role not in roles_of(names := _names(peer)):
        raise PermissionDeniedError(f"{', '.join(names)} may not {act}")


def _names(peer: AuthContext) -> list[str]:
    return sorted(name.decode("ascii", "replace") for name in peer.get(_PEER_NAMES, ()))


def _server_configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.certificate)], root_certificates=credentials.authorities
    )
