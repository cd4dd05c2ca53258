"""Images are built once; without a container engine nothing here runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.compose.compose_mesh import ComposeMesh, compose_mesh
from tests.compose.container_engine import ContainerEngine, container_engine
from tests.compose.public_images import provide, provide_debian, torch_index
from tests.hygiene.tree import ROOT
from tests.support.needs import lack


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    with container_engine(tmp_path_factory.mktemp("engine")) as found:
        if isinstance(found, str):
            lack("container engine", found)
        if found.compose is None:
            lack("container engine", "neither docker compose nor docker-compose is here")
        yield found


def public_images() -> list[str]:
    """All that the compose files name and do not build, but for Grafana, which nothing stands for."""
    files = (ROOT / "docker-compose.yml", ROOT / "deploy/compose/observability.yml")
    services = [
        each for path in files for each in yaml.safe_load(path.read_text())["services"].values()
    ]
    images = [str(each["image"]) for each in services if "image" in each]
    return [image for image in images if not image.startswith(("ghcr.io/pagemesh/", "grafana/"))]


@pytest.fixture(scope="session")
def build_arguments(
    engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What builds of images with PyTorch are told, with the base of all images provided."""
    folder: Path = tmp_path_factory.mktemp("base")
    if missing := provide_debian(engine, folder):
        lack("container engine", missing)
    with torch_index(engine, folder) as index:
        yield index


@pytest.fixture(scope="session")
def variables(
    engine: ContainerEngine,
    build_arguments: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """What the compose files are told, with public images provided."""
    folder: Path = tmp_path_factory.mktemp("images")
    for image in public_images():
        provide(engine, image, folder)
    return build_arguments


@pytest.fixture(scope="module")
def mesh(engine: ContainerEngine, variables: dict[str, str]) -> Iterator[ComposeMesh]:
    with compose_mesh(engine, variables=variables) as running:
        yield running
