"""`pagemesh certificates FOLDER`: certificates for a mesh that has no authority of its own.

The authority's key is never written: to add a role or to renew, all are made anew.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pagemesh.cli.settings import CertificatesConfig
from pagemesh.config.connections import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority

_OWNERS: Final = tuple(role for role in MeshRole if role is not MeshRole.WORKER)
"""A worker's certificate also says of which kind it is."""

_HTTPS: Final = "https"
"""The gateway as its clients see it."""


def run(config: CertificatesConfig) -> None:
    """Write what is not there. Raises ConfigError for a folder that cannot be used, or has some of the files."""
    folder = Path(config.folder)
    owners = [*_OWNERS, *([_HTTPS] if config.hosts else [])]
    files = {owner: MeshTlsConfig.in_folder(folder, owner) for owner in owners}
    paths = [Path(str(path)) for owned in files.values() for path in _paths(owned)]
    present = [path for path in paths if path.exists()]
    if len(present) == len(paths):
        print(f"{folder} has them all: {', '.join(owners)}")
        return
    if present:
        missing = next(path.name for path in paths if not path.exists())
        raise ConfigError(
            f"--folder is {config.folder!r}, which has {present[0].name} and lacks {missing}: one authority signs"
            " all, so remove what is there first"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _issue(files, config)
    except OSError as error:
        raise ConfigError(
            f"--folder is {config.folder!r}, which cannot be written to: {error.strerror}"
        ) from error
    print(f"{folder} has them now, for {config.days} days: {', '.join(owners)}")


def _issue(files: dict[str, MeshTlsConfig], config: CertificatesConfig) -> None:
    authority, lifetime = ThrowAwayAuthority(), timedelta(days=config.days)
    for owner, owned in files.items():
        if owner == _HTTPS:
            authority.issue_for_hosts(owned, config.hosts, lifetime)
        else:
            authority.issue(owned, REQUIRED[MeshRole(owner)], lifetime)


def _paths(files: MeshTlsConfig) -> tuple[str | None, ...]:
    return files.mesh_cert, files.mesh_key, files.mesh_ca
