"""An authority of a mesh for tests, and the certificates that it gave out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pagemesh.config import MeshTlsConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.identity.throw_away import ThrowAwayAuthority, replace_file
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

A_DAY = timedelta(days=1)


class MeshAuthority:
    """Certificates of one authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.authority = ThrowAwayAuthority()

    def issue(
        self,
        name: str,
        *roles: MeshRole,
        lifetime: timedelta = A_DAY,
        in_place_of: MeshAuthority | None = None,
    ) -> MeshTlsConfig:
        """Files for an owner of these roles, in place of those that `name` had before, from another one too."""
        settings = (in_place_of or self).files(name)
        self.authority.issue(settings, roles, lifetime)
        return settings

    def files(self, name: str) -> MeshTlsConfig:
        """Where the files of an owner are."""
        return MeshTlsConfig.in_folder(self._folder, name)

    def identity(self, *roles: MeshRole, metrics: Metrics | None = None) -> Identity:
        """Of somebody who is the first of the roles, and the others too."""
        settings = self.issue("-".join(roles), *roles)
        identity = Identity.load(settings, roles[0], metrics or Metrics())
        assert identity is not None
        return identity


def trust(settings: MeshTlsConfig, *authorities: MeshAuthority) -> None:
    """Have whoever reads these files accept what these authorities signed, and nothing else."""
    replace_file(
        Path(str(settings.mesh_ca)), b"".join(known.authority.pem for known in authorities)
    )
