"""Certificates for tests."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagemesh.config import TlsConfig

_PEM = serialization.Encoding.PEM
_FORMAT = serialization.PrivateFormat.PKCS8


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    def settings(self, **others: object) -> TlsConfig:
        paths = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        return TlsConfig(**{**paths, **others})  # type: ignore[arg-type]


def make_certificate(folder: Path, name: str, authority: Pair | None = None) -> Pair:
    """One for localhost, signed by `authority` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_key = key
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes()).subject
        signing_key = read_key(authority)
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(authority is None, None), critical=True)
        .sign(signing_key, hashes.SHA256())
    )
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    pair.certificate.write_bytes(certificate.public_bytes(_PEM))
    pair.key.write_bytes(key.private_bytes(_PEM, _FORMAT, serialization.NoEncryption()))
    return pair


def read_key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    """The key itself."""
    key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def write_encrypted_key(pair: Pair, path: Path) -> None:
    """The key of a pair as OpenSSL writes one with a password."""
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    secret = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(read_key(pair).private_bytes(_PEM, traditional, secret))
