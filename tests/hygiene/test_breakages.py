"""The list of deliberate faults fits the code, and no test of a promise is missing from it."""

from __future__ import annotations

import ast

import pytest

from tests.hygiene.tree import ROOT, name_of, sources, syntax
from tools.breakages import Breakage, load_breakages

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
    for edit in breakage.edits:
        text = (ROOT / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.find) == 1, f"{edit.file} has {edit.find!r} not exactly once"
        assert edit.replace != edit.find


def test_every_test_of_a_promise_has_a_fault_that_it_notices() -> None:
    named = {test for breakage in load_breakages() for test in breakage.tests}
    assert functions_in(*PROVEN) - named == set(), "add a fault to tests/breakages.toml"
    assert named - functions_in("tests/") == set()
