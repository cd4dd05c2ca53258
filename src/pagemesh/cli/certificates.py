"""`pagemesh certificates FOLDER`: certificates for a mesh that has no authority of its own.

The authority's key is never written: to add a role or to renew, all are made anew.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pagemesh.cli.settings import CertificatesConfig
from pagemesh.config.mesh_tls import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority

_OWNERS: Final = tuple(role for role in MeshRole if role is not MeshRole.WORKER)
"""A worker's certificate also says of which kind it is."""


def run(config: CertificatesConfig) -> None:
    """Write what is not there. Raises ConfigError for a folder that cannot be used, or has some of the files."""
    folder = Path(config.folder)
    settings = {role: _files(folder, role) for role in _OWNERS}
    paths = [Path(str(path)) for files in settings.values() for path in _paths(files)]
    present = [path for path in paths if path.exists()]
    if len(present) == len(paths):
        print(f"{folder} has certificates of all roles already")
        return
    if present:
        raise ConfigError(
            f"--folder is {config.folder!r}, which has {present[0].name} and lacks others: one authority signs all, so"
            " remove it first"
        )
    authority = ThrowAwayAuthority()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for role, files in settings.items():
            authority.issue(files, REQUIRED[role], timedelta(days=config.days))
    except OSError as error:
        raise ConfigError(
            f"--folder is {config.folder!r}, which cannot be written to: {error.strerror}"
        ) from error
    print(f"{folder} has certificates for {', '.join(_OWNERS)}, valid for {config.days} days")


def _files(folder: Path, role: MeshRole) -> MeshTlsConfig:
    return MeshTlsConfig(*(str(folder / f"{role}.{kind}") for kind in ("crt", "key", "ca")))


def _paths(files: MeshTlsConfig) -> tuple[str | None, ...]:
    return files.mesh_cert, files.mesh_key, files.mesh_ca
