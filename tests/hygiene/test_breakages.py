"""The list of deliberate faults fits the code, and no test of a promise is missing from it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hygiene.tree import ROOT, name_of, package_roots, sources, syntax
from tools.breakages import Breakage, Edit, broken_files, load_breakages

PROVEN = ("tests/mesh/", "tests/identity/")
"""Folders whose every test has been seen to fail."""


def functions_in(*folders: str) -> set[str]:
    return {
        f"{name_of(path)}::{node.name}"
        for path in sources()
        if name_of(path).startswith(folders)
        for node in syntax(path).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("breakage", load_breakages(), ids=lambda breakage: breakage.name)
def test_every_fault_still_fits_the_code(breakage: Breakage) -> None:
    assert broken_files(breakage.edits, ROOT)
    assert all(edit.replace != edit.find for edit in breakage.edits)


def test_what_is_imported_is_named_by_its_symbol() -> None:
    portions = tuple(f"{root.as_posix()}/pagemesh/" for root in package_roots())
    files = [edit.file for breakage in load_breakages() for edit in breakage.edits]
    assert [each for each in files if each.endswith(".py") and each.startswith(portions)] == []


def test_every_test_of_a_promise_has_a_fault_that_it_notices() -> None:
    named = {test for breakage in load_breakages() for test in breakage.tests}
    assert functions_in(*PROVEN) - named == set(), "add a fault to tests/breakages.toml"
    assert named - functions_in("tests/") == set()


RETRY = "def retry(call):\n    return call() or call()\n"
FORGET = Edit("call() or call()", "call()", symbol="pagemesh.rpc.calls:retry")


def write(tree: Path, file: str, text: str) -> Path:
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_same_text_in_another_function_does_not_disturb(tmp_path: Path) -> None:
    other = RETRY.replace("retry", "again")
    path = write(tmp_path, "src/pagemesh/rpc/calls.py", other + RETRY + other)
    broken = RETRY.replace("call() or call()", "call()")
    assert broken_files([FORGET], tmp_path) == {path: other + broken + other}


def test_a_function_that_moved_needs_another_symbol_only(tmp_path: Path) -> None:
    path = write(tmp_path, "services/router/pagemesh/router/retries.py", f"LIMIT = 1\n\n\n{RETRY}")
    write(tmp_path, "src/pagemesh/rpc/calls.py", "LIMIT = 2\n")
    with pytest.raises(LookupError, match=r"no symbol pagemesh\.rpc\.calls:retry$"):
        broken_files([FORGET], tmp_path)
    moved = replace(FORGET, symbol="pagemesh.router.retries:retry")
    assert list(broken_files([moved], tmp_path)) == [path]


@pytest.mark.parametrize("find", ["call(1)", "call()"])
def test_a_text_that_does_not_stand_there_exactly_once_is_named(tmp_path: Path, find: str) -> None:
    write(tmp_path, "src/pagemesh/rpc/calls.py", RETRY)
    with pytest.raises(LookupError) as refused:
        broken_files([replace(FORGET, find=find)], tmp_path)
    assert str(refused.value) == f"pagemesh.rpc.calls:retry has {find!r} not exactly once"


def test_the_edits_of_a_fault_may_be_in_one_file_and_in_files_without_symbols(
    tmp_path: Path,
) -> None:
    code = write(tmp_path, "src/pagemesh/rpc/calls.py", f"{RETRY}\n\nLIMIT = 1\n")
    script = write(tmp_path, "src/pagemesh/rpc/add.lua", "return 1\n")
    edits = [
        replace(FORGET, replace="call(\n    )"),
        Edit("1", "2", symbol="pagemesh.rpc.calls:LIMIT"),
        Edit("return 1", "return 2", file="src/pagemesh/rpc/add.lua"),
    ]
    assert broken_files(edits, tmp_path) == {
        code: "def retry(call):\n    return call(\n    )\n\n\nLIMIT = 2\n",
        script: "return 2\n",
    }


@pytest.mark.parametrize("where", [{}, {"symbol": "pagemesh.rpc", "file": "src/pagemesh/rpc.py"}])
def test_an_edit_has_either_a_symbol_or_a_file(where: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a symbol or a file"):
        Edit("a", "b", **where)
