"""Settings of TLS between the processes of a mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from pagemesh.config.environment import mesh_file_of_environment
from pagemesh.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MeshTlsConfig:
    """Certificates that processes of a mesh show each other; all three files or none.

    Files that are replaced (by a rename, as `mv`, cert-manager and Kubernetes do) are used for new connections
    without a restart. PAGEMESH_MESH_CERT, PAGEMESH_MESH_KEY and PAGEMESH_MESH_CA name them where no flag does.
    """

    mesh_cert: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_cert"))
    """PEM file with this process's certificate, and those between it and an authority; with it, other processes of
    the mesh are called and served by TLS alone, and must show a certificate too. Its DNS names say what the process
    is, such as router.pagemesh."""

    mesh_key: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_key"))
    """PEM file with that certificate's private key, which must not be encrypted."""

    mesh_ca: str | None = field(default_factory=partial(mesh_file_of_environment, "mesh_ca"))
    """PEM file with the authorities whose certificates are accepted."""

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> Self:
        """Files that are called after their owner."""
        return cls(*(str(folder / f"{name}.{kind}") for kind in ("crt", "key", "ca")))

    def __post_init__(self) -> None:
        paths = {
            "--mesh-cert": self.mesh_cert,
            "--mesh-key": self.mesh_key,
            "--mesh-ca": self.mesh_ca,
        }
        missing = [flag for flag, path in paths.items() if path is None]
        if missing and len(missing) < len(paths):
            raise ConfigError(
                f"{' and '.join(missing)} must be given too: --mesh-cert, --mesh-key and --mesh-ca belong together"
            )

    @property
    def is_on(self) -> bool:
        """Whether the processes of the mesh speak TLS with each other."""
        return self.mesh_cert is not None
