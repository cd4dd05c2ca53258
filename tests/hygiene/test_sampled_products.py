"""What `make test` runs of a product: the pairs that found bugs, every value once, and what a seed draws."""

from __future__ import annotations

import itertools
import json
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


# Imports what takes long, and looks for tests in a child for each seed and its arguments.
COLLECT = """
import json, os, sys
import hypothesis, psutil, pytest, pagemesh.telemetry.logs

for seed, *arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.environ["PAGEMESH_TEST_SEED"] = seed
        code = pytest.main(arguments)
        print("the end", flush=True)
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
"""


def collected(*runs: tuple[str, ...]) -> list[list[str]]:
    """Names of the items that processes of their own would run, each with its seed and its arguments."""
    options = ["-p", "tests.conftest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    # What is imported already cannot be rewritten, which no item needs.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    asked = [[seed, *options, "-c", "pyproject.toml", *arguments] for seed, *arguments in runs]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        input=json.dumps(asked),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = done.stdout.split("the end\n")[:-1]
    assert len(parts) == len(runs)
    return [re.findall(r"::(\S+)", part) for part in parts]


def test_a_run_takes_a_sample_all_or_what_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test_product.py"
    path.write_text(MODULE)
    sampled, whole = collected(("1", str(path)), ("1", str(path), "-m", "not containers"))
    assert "test_it[4-1]" in sampled and len(sampled) == 8
    assert len(whole) == 25
    (left_out, *_) = sorted(set(whole) - set(sampled))
    assert collected(("1", f"{path}::{left_out}")) == [[left_out]]


def test_of_costly_files_one_in_48_is_drawn_and_what_is_named_runs(tmp_path: Path) -> None:
    text = "import pytest\npytestmark = pytest.mark.costly\ndef test_one(): pass\ndef test_two(): pass\n"
    for number in range(47):
        (tmp_path / f"test_costly_{number}.py").write_text(text)
    (tmp_path / "test_other.py").write_text(
        "import pytest\ndef test_it(): pass\n@pytest.mark.costly\ndef test_costly(): pass\n"
    )
    named = [str(path) for path in tmp_path.glob("*_costly_*.py")]
    seeds = [(str(seed), str(tmp_path)) for seed in range(4)]
    *of_seeds, whole, of_named = collected(
        *seeds, ("1", str(tmp_path), "-m", "not containers"), ("1", *named)
    )
    drawn_files = set()
    for names in of_seeds:
        assert "test_it" in names
        assert names.count("test_one") == names.count("test_two") in (0, 1)
        drawn_files.add(names.count("test_one") + names.count("test_costly"))
    assert drawn_files == {1}
    assert len(whole) == 96
    assert of_named == ["test_one", "test_two"] * 47


def test_files_with_something_costly_come_first(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_cheap(): pass\n")
    (tmp_path / "test_b.py").write_text(
        "import pytest\ndef test_beside(): pass\n@pytest.mark.costly\ndef test_costly(): pass\n"
    )
    (names,) = collected(("1", str(tmp_path), "-m", "not containers"))
    assert names == ["test_beside", "test_costly", "test_cheap"]
