"""An authority for one mesh on one machine: its key is in no file and dies with this object."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pagemesh.config.connections import MeshTlsConfig
from pagemesh.identity.roles import MeshRole

_LIFETIME: Final = timedelta(days=3650)
"""No mesh that one command keeps up lives as long. Their keys are gone with it."""

_SKEW: Final = timedelta(hours=1)


class ThrowAwayAuthority:
    """Signs certificates, and forgets how when it is gone."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        # A name of its own: a chain must not be tried against another mesh's authority.
        name = f"pagemesh {x509.random_serial_number():x}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(
            self._name, self._key.public_key(), _LIFETIME, [(x509.BasicConstraints(True, 0), True)]
        )

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(
        self, settings: MeshTlsConfig, roles: Iterable[MeshRole], lifetime: timedelta = _LIFETIME
    ) -> None:
        """Write the three files that the settings name, each at once, the key for this user's eyes alone."""
        self._issue(settings, [x509.DNSName(role.dns_name) for role in sorted(roles)], lifetime)

    def issue_for_hosts(
        self, settings: MeshTlsConfig, hosts: Iterable[str], lifetime: timedelta = _LIFETIME
    ) -> None:
        """Likewise, for a server that clients know under these names and addresses. No role of a mesh."""
        self._issue(settings, [_host_name(host) for host in hosts], lifetime)

    def _issue(
        self, settings: MeshTlsConfig, owner: list[x509.GeneralName], lifetime: timedelta
    ) -> None:
        assert settings.mesh_cert and settings.mesh_key and settings.mesh_ca
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(owner)
        usages = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        # Without a subject the names are critical, as RFC 5280 has it.
        certificate = self._sign(
            x509.Name([]), key.public_key(), lifetime, [(names, True), (usages, False)]
        )
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        replace_file(Path(settings.mesh_ca), self.pem)
        replace_file(Path(settings.mesh_key), text)
        replace_file(Path(settings.mesh_cert), certificate.public_bytes(Encoding.PEM))

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        lifetime: timedelta,
        extensions: Iterable[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + lifetime) - _SKEW)
            .not_valid_after(now + lifetime)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, in place of the one that is there, in one moment."""
    partial = path.with_suffix(".partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
