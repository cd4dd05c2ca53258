"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from pagemesh.config import TlsConfig


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    def settings(self, **others: object) -> TlsConfig:
        paths = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        return TlsConfig(**{**paths, **others})  # type: ignore[arg-type]


def make_certificate(folder: Path, name: str, authority: Pair | None = None) -> Pair:
    """One for localhost, signed by `authority` or by itself."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    if authority is not None:
        command += ["-CA", str(authority.certificate), "-CAkey", str(authority.key)]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    return pair
