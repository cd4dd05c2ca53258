"""What the commands of the suite for a rented GPU find around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gpu_suite import surroundings
from tools.gpu_suite.record import ROOT
from tools.gpu_suite.surroundings import environment, models_in_memory


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In which a model has room; nothing is mounted."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(surroundings, "SHARED_MEMORY", folder)
    monkeypatch.setattr(surroundings, "MODEL_BYTES", 1)
    monkeypatch.setattr(surroundings, "BUILD", tmp_path / "build")
    monkeypatch.setattr(surroundings, "_HOST_BYTES", 1 << 60)
    return folder


def test_wheels_stand_before_the_tree_and_the_tree_before_what_was_there(tmp_path: Path) -> None:
    variables = environment(tmp_path, "0123", {"PYTHONPATH": "/theirs", "HOME": "/home"})
    first, *tree, last = variables["PYTHONPATH"].split(":")
    assert (first, last) == (str(tmp_path), "/theirs")
    assert tree == [str(ROOT / root) for root in makefile_roots()] + [str(ROOT)]
    assert variables["HOME"] == "/home"


def makefile_roots() -> list[str]:
    lines = (ROOT / "Makefile").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("ROOTS  := "))
    return line.split()[2:]


def test_figures_of_a_copy_without_a_repository_say_of_which_tree_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    monkeypatch.setattr(surroundings, "ROOT", tmp_path)
    assert environment(tmp_path, "0123", {})["PAGEMESH_COMMIT"] == "tree 0123"
    named = environment(tmp_path, "0123", {"PAGEMESH_COMMIT": "abc"})
    assert named["PAGEMESH_COMMIT"] == "abc"
    (tmp_path / ".git").mkdir()
    assert "PAGEMESH_COMMIT" not in environment(tmp_path, "0123", {})


def test_the_model_lies_in_memory_where_it_has_room(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models_in_memory({})
    assert folder is not None
    assert folder.parent == memory
    monkeypatch.setattr(surroundings, "MODEL_BYTES", 1 << 60)
    assert models_in_memory({}) is None
    # What was made already needs no room.
    (folder / "pagemesh").mkdir()
    assert models_in_memory({}) == folder


@pytest.mark.usefixtures("memory")
def test_a_place_that_is_named_for_caches_is_the_models() -> None:
    assert models_in_memory({"XDG_CACHE_HOME": "/theirs"}) is None
