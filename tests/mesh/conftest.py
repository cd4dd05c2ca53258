"""Meshes that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.harness import Mesh, running_mesh

DEMO = Path(__file__).resolve().parents[2] / "models/demo"


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """What `pagemesh up` starts by default: one prefill and one decode worker."""
    with running_mesh(tmp_path_factory.mktemp("mesh"), "--model", str(DEMO), "--no-sample") as up:
        yield up


@pytest.fixture(scope="module")
def aggregated_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One decode worker that does everything."""
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0"]
    with running_mesh(tmp_path_factory.mktemp("aggregated"), *arguments) as running:
        yield running


@pytest.fixture(scope="module", params=[True, False], ids=["memory", "messages"])
def shares_memory(request: pytest.FixtureRequest) -> bool:
    """Whether KV is read out of the prefill worker's memory, or else travels in messages."""
    return bool(request.param)


@pytest.fixture(scope="module")
def disaggregated_mesh(
    shares_memory: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    """Every prompt of a block and more is prefilled remotely, in small steps, and never found cached."""
    arguments = ["--model", str(DEMO), "--no-sample", "--no-enable-prefix-caching"]
    arguments += ["--block-size", "4", "--max-num-batched-tokens", "48", "--max-num-seqs", "32"]
    arguments += ["--remote-prefill-min-tokens", "4"]
    arguments += ["--share-kv-memory" if shares_memory else "--no-share-kv-memory"]
    with running_mesh(tmp_path_factory.mktemp("disaggregated"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def remembering_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """What lacks more than a block is prefilled remotely, in small steps: it is sooner pulled than computed."""
    arguments = ["--model", str(DEMO), "--no-sample", "--remote-prefill-min-tokens", "17"]
    arguments += ["--max-num-batched-tokens", "16", "--max-num-seqs", "4"]
    # On busy cores, an answer of the index may take longer than a router would wait for it.
    arguments += ["--lookup-timeout", "5"]
    with running_mesh(tmp_path_factory.mktemp("remembering"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def healing_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh whose processes get killed; small steps make a long prompt's remote prefill take its time."""
    arguments = ["--model", str(DEMO), "--no-sample", "--no-enable-prefix-caching"]
    arguments += ["--max-num-batched-tokens", "4", "--max-num-seqs", "4"]
    arguments += ["--remote-prefill-min-tokens", "16"]
    with running_mesh(tmp_path_factory.mktemp("healing"), *arguments) as running:
        yield running


@pytest.fixture
def fragile_mesh(healing_mesh: Mesh) -> Mesh:
    """The same, whole again after what the test before did to it."""
    healing_mesh.wait_until_complete()
    healing_mesh.wait_until_idle()
    return healing_mesh
