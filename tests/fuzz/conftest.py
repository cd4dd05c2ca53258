"""The mesh that all fuzzers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.harness import Mesh, running_mesh, tracebacks

FACTOR = int(os.environ.get("PAGEMESH_FUZZ_FACTOR", "1"))
"""How many times as much is tried."""

DEMO = Path(__file__).resolve().parents[2] / "models/demo"


def check_nothing_is_left(mesh: Mesh) -> None:
    """Nothing has gone wrong in any part, and nothing runs any more."""
    assert mesh.log("router", "request failed") == []
    assert tracebacks(mesh) == []
    assert mesh.metric("router", "pagemesh:requests_in_progress") == 0
    mesh.wait_until_idle()


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A short context, so that answers without a limit end soon."""
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0", "--max-model-len", "400"]
    arguments.append("--enable-tokenizer-info-endpoint")
    with running_mesh(tmp_path_factory.mktemp("fuzzed"), *arguments) as mesh:
        yield mesh
