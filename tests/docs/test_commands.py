"""Every command and program of the documents does what its document says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import all_blocks
from tests.docs.desk import GATEWAY, KVSTORE, ROUTER, desk_at
from tests.docs.listed import is_elsewhere, is_slow
from tests.docs.running import Reading
from tests.hygiene.tree import ROOT
from tests.mesh.harness import Mesh, option, running_mesh
from tests.support.needs import need

pytestmark = pytest.mark.costly

SLOW_TOO = os.environ.get("PAGEMESH_SLOW_DOCS") == "1"
TO_RUN = [
    block
    for block in all_blocks()
    if block.runs and not is_elsewhere(block) and (SLOW_TOO or not is_slow(block))
]

FOR_NEWCOMERS = ("README.md", "docs/quick-start.md")
"""Whose commands run each time."""
DOCUMENTS = [
    pytest.param(name, marks=[] if name in FOR_NEWCOMERS else pytest.mark.exhaustive)
    for name in sorted({block.document for block in TO_RUN})
]


@pytest.fixture(scope="module")
def mesh_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, int]]:
    """A mesh for all documents that speak of one which is there; its ports, by the documents' numbers."""
    arguments = ["--model", str(ROOT / "models/demo"), "--explain-routes"]
    with running_mesh(tmp_path_factory.mktemp("mesh"), *arguments) as mesh:
        yield {
            GATEWAY: int(mesh.address.rpartition(":")[2]),
            KVSTORE: _port(mesh, "kvstore"),
            ROUTER: _port(mesh, "router"),
        }


def _port(mesh: Mesh, part: str) -> int:
    port = option(mesh.parts()[part], "--port")
    assert port is not None, f"{part} was told its port"
    return int(port)


@pytest.mark.timeout(0 if SLOW_TOO else 180)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_does_what_it_says(
    document: str, mesh_ports: dict[int, int], tmp_path: Path
) -> None:
    blocks = [block for block in TO_RUN if block.document == document]
    if any("curl" in block.text for block in blocks):
        need("curl")
    with desk_at(tmp_path, mesh_ports) as desk:
        reading = Reading(desk)
        try:
            for block in blocks:
                reading.run(block)
        finally:
            reading.close()
