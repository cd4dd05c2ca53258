"""Where a process finds its certificates: flags, else the environment."""

from __future__ import annotations

import pytest

from pagemesh.cli.arguments import parse
from pagemesh.config.connections import MeshTlsConfig
from pagemesh.errors import ConfigError

FILES = {"CERT": "own.crt", "KEY": "own.key", "CA": "mesh.ca"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in FILES.items():
        monkeypatch.setenv(f"PAGEMESH_MESH_{name}", path)


def parsed(*arguments: str) -> MeshTlsConfig:
    return parse(MeshTlsConfig, "test", "", arguments)


def test_without_files_there_is_no_tls() -> None:
    assert not parsed().is_on


@pytest.mark.usefixtures("environment")
def test_the_environment_names_files_that_no_flag_does() -> None:
    assert parsed() == MeshTlsConfig("own.crt", "own.key", "mesh.ca")
    assert parsed("--mesh-ca", "other.ca") == MeshTlsConfig("own.crt", "own.key", "other.ca")


@pytest.mark.usefixtures("environment")
def test_a_file_that_is_missing_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAGEMESH_MESH_KEY", "")
    with pytest.raises(ConfigError, match=r"^--mesh-key must be given too"):
        parsed()
