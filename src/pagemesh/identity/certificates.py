"""A process's own certificate, its key and its authorities: read, checked, and read again when they change."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from pagemesh.config.connections import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.identity.roles import REQUIRED, MeshRole, roles_of

_Stamps = tuple[tuple[int, int, int] | None, ...]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_REPORT_PERIOD: Final = 60.0
"""Seconds after which it is said again that the certificate has expired."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the files said when they were read last and fitted together; PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes
    expires_at: datetime
    generation: int
    """Grows with every change: channels that were opened with an older one show an older certificate."""


class Certificates:
    """The files of one process. Safe to use from any thread: gRPC asks at handshakes, from threads of its own."""

    def __init__(self, config: MeshTlsConfig, role: MeshRole) -> None:
        """Read them for a process that is `role`; ConfigError that names flag and file for what cannot be used."""
        assert config.mesh_cert and config.mesh_key and config.mesh_ca, "asked for with TLS alone"
        self._paths = {
            "--mesh-cert": Path(config.mesh_cert),
            "--mesh-key": Path(config.mesh_key),
            "--mesh-ca": Path(config.mesh_ca),
        }
        self._role = role
        self._lock = threading.Lock()
        self._seen = self._look()
        self._present = self._read(generation=0)
        self._reported_at = -_REPORT_PERIOD

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """Of the certificate, the key and the authorities."""
        return (
            self._paths["--mesh-cert"],
            self._paths["--mesh-key"],
            self._paths["--mesh-ca"],
        )

    def current(self) -> Credentials:
        """What the files say now, or, while they do not fit together, what they said before."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._take_up(seen)
            self._report_expiry()
            return self._present

    def _take_up(self, seen: _Stamps) -> None:
        # Whatever comes of it: files that are wrong are read again, and complained of, only when they change.
        self._seen = seen
        try:
            self._present = self._read(self._present.generation + 1)
        except ConfigError as error:
            _log.error(
                "certificates_refused", error=error.message, kept=str(self._present.expires_at)
            )
            return
        _log.info("certificates_replaced", expires_at=str(self._present.expires_at))

    def _report_expiry(self) -> None:
        now = time.monotonic()
        is_over = self._present.expires_at <= datetime.now(UTC)
        if is_over and now - self._reported_at >= _REPORT_PERIOD:
            self._reported_at = now
            _log.error(
                "certificate_expired",
                error=f"{_named('--mesh-cert', self._paths['--mesh-cert'])}, which expired on "
                f"{_day(self._present.expires_at)}: no other process accepts it any more",
            )

    def _look(self) -> _Stamps:
        """Something that differs when a file was replaced or written to."""
        return tuple(_stamp(path) for path in self._paths.values())

    def _read(self, generation: int) -> Credentials:
        texts = {flag: _read_file(flag, path) for flag, path in self._paths.items()}
        certificates = {
            flag: _parse_certificates(flag, self._paths[flag], texts[flag])
            for flag in ("--mesh-cert", "--mesh-ca")
        }
        own = certificates["--mesh-cert"][0]
        self._require_key(own, texts["--mesh-key"])
        self._require_time(own)
        self._require_role(own)
        return Credentials(
            certificate=texts["--mesh-cert"],
            key=texts["--mesh-key"],
            authorities=texts["--mesh-ca"],
            expires_at=own.not_valid_after_utc,
            generation=generation,
        )

    def _require_key(self, own: x509.Certificate, pem: bytes) -> None:
        named = _named("--mesh-key", self._paths["--mesh-key"])
        try:
            key = load_pem_private_key(pem, password=None)
        except TypeError:
            raise ConfigError(f"{named}, whose key is encrypted") from None
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{named}, which has no private key in PEM format") from error
        if _public(key.public_key()) != _public(own.public_key()):
            raise ConfigError(f"{named}, which is not the key of {self._paths['--mesh-cert']}")

    def _require_time(self, own: x509.Certificate) -> None:
        named, now = _named("--mesh-cert", self._paths["--mesh-cert"]), datetime.now(UTC)
        if own.not_valid_after_utc <= now:
            raise ConfigError(f"{named}, which expired on {_day(own.not_valid_after_utc)}")
        if own.not_valid_before_utc > now:
            raise ConfigError(
                f"{named}, which is not valid before {_day(own.not_valid_before_utc)}"
            )

    def _require_role(self, own: x509.Certificate) -> None:
        names = dns_names(own)
        if missing := sorted(role.dns_name for role in REQUIRED[self._role] - roles_of(names)):
            raise ConfigError(
                f"{_named('--mesh-cert', self._paths['--mesh-cert'])}, whose DNS names are "
                f"{', '.join(names) or 'none'}, but must be {' and '.join(missing)} too"
            )


def roles_named_in(config: MeshTlsConfig) -> frozenset[MeshRole]:
    """What the owner of a certificate is; ConfigError for a file without one."""
    path = Path(str(config.mesh_cert))
    first = _parse_certificates("--mesh-cert", path, _read_file("--mesh-cert", path))[0]
    return roles_of(dns_names(first))


def dns_names(certificate: x509.Certificate) -> list[str]:
    """The DNS names that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_file(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{_named(flag, path)}, which cannot be read: {error.strerror}"
        ) from error


def _parse_certificates(flag: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(
            f"{_named(flag, path)}, which has no certificate in PEM format"
        ) from error


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _named(flag: str, path: Path) -> str:
    return f"{flag} is {str(path)!r}"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d at %H:%M:%S UTC}"
