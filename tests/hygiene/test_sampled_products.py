"""What `make test` runs of a product: the pairs that found bugs, every value once, and what a seed draws."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hygiene.tree import ROOT
from tests.support.products import drawn, sample

FORMATS = ("float32", "bfloat16", "int4")
PATHS = ("local", "remote", "pulled", "resumed")
PRODUCT: list[Any] = [
    SimpleNamespace(
        callspec=SimpleNamespace(id=f"{format}-{path}", params={"format": format, "path": path})
    )
    for format, path in itertools.product(FORMATS, PATHS)
]


def ids(seed: str, **choice: Any) -> list[str]:
    return [item.callspec.id for item in sample("test_it", PRODUCT, seed, **choice)]


@pytest.mark.parametrize("seed", [str(seed) for seed in range(50)])
def test_each_value_is_there_and_what_found_bugs(seed: str) -> None:
    found = ids(seed, found_bugs=["int4-local", "int4-remote"])
    assert found[:2] == ["int4-local", "int4-remote"]
    assert {name.partition("-")[0] for name in found} == set(FORMATS)
    assert {name.partition("-")[2] for name in found} == set(PATHS)
    assert len(set(found)) == len(found) <= 6


def test_a_sample_is_as_large_as_it_was_asked_for() -> None:
    assert len(ids("1", sample=9)) == 9
    assert sorted(ids("1", sample=100)) == sorted(item.callspec.id for item in PRODUCT)


def test_of_what_takes_long_few_are_drawn_beside_those_that_found_bugs() -> None:
    found = ids("1", found_bugs=["int4-local"], most=2)
    assert found[0] == "int4-local" and len(found) == 3


def test_values_of_a_fixture_are_drawn() -> None:
    params = drawn("a fixture", [*FORMATS, *PATHS], ["float32"], 2)
    kept = [param.values[0] for param in params if not param.marks]
    assert len(params) == 7 and len(kept) == 3 and "float32" in kept


def test_a_seed_draws_the_same_again_and_seeds_draw_everything() -> None:
    assert ids("7") == ids("7")
    assert set().union(*(ids(str(seed)) for seed in range(50))) == {
        item.callspec.id for item in PRODUCT
    }


def test_a_pair_that_is_none_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="test_it has no int8-local; it has float32-local"):
        ids("1", found_bugs=["int8-local"])


MODULE = """
import pytest

@pytest.mark.product(found_bugs=["4-1"], sample=8)
@pytest.mark.parametrize("format", range(5))
@pytest.mark.parametrize("path", range(5))
def test_it(path, format):
    pass
"""


def collected(seed: str, *arguments: str) -> list[str]:
    """Names of the items that a process of its own would run."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-c", "pyproject.toml", *arguments],
        cwd=ROOT,
        env=os.environ | {"PAGEMESH_TEST_SEED": seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"::(\S+)", done.stdout)


def test_a_run_takes_a_sample_all_or_what_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test_product.py"
    path.write_text(MODULE)
    sampled = collected("1", str(path))
    assert "test_it[4-1]" in sampled and len(sampled) == 8
    whole = collected("1", str(path), "-m", "not containers")
    assert len(whole) == 25
    (left_out, *_) = sorted(set(whole) - set(sampled))
    assert collected("1", f"{path}::{left_out}") == [left_out]


def test_of_costly_files_one_in_24_is_drawn_and_what_is_named_runs(tmp_path: Path) -> None:
    text = "import pytest\npytestmark = pytest.mark.costly\ndef test_one(): pass\ndef test_two(): pass\n"
    for number in range(47):
        (tmp_path / f"test_costly_{number}.py").write_text(text)
    (tmp_path / "test_other.py").write_text(
        "import pytest\ndef test_it(): pass\n@pytest.mark.costly\ndef test_costly(): pass\n"
    )
    drawn_files = set()
    for seed in range(4):
        names = collected(str(seed), str(tmp_path))
        assert "test_it" in names
        assert names.count("test_one") == names.count("test_two") in (1, 2)
        drawn_files.add(names.count("test_one") + names.count("test_costly"))
    assert drawn_files == {2}
    assert len(collected("1", str(tmp_path), "-m", "not containers")) == 96
    named = (str(path) for path in tmp_path.glob("*_costly_*.py"))
    assert collected("1", *named) == ["test_one", "test_two"] * 47


def test_files_with_something_costly_come_first(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_cheap(): pass\n")
    (tmp_path / "test_b.py").write_text(
        "import pytest\ndef test_beside(): pass\n@pytest.mark.costly\ndef test_costly(): pass\n"
    )
    names = collected("1", str(tmp_path), "-m", "not containers")
    assert names == ["test_beside", "test_costly", "test_cheap"]
