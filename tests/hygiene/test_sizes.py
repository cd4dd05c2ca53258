"""Nothing grows past the size at which it is read in one go; exceptions are listed and only shrink."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.hygiene.tree import ROOT, name_of, sources, syntax

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_TRITON_KERNEL_LINES = 120
MAX_METHODS = 15
MAX_IMPORTED_NAMES = 30


class Measure(NamedTuple):
    what: str
    """The file, or "path::name"."""
    unit: str
    size: int
    limit: int


def is_triton_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        ast.unparse(decorator).startswith("triton.") for decorator in function.decorator_list
    )


def measures(path: Path, tree: ast.Module) -> Iterator[Measure]:
    name = name_of(path)
    yield Measure(name, "lines", len(path.read_text(encoding="utf-8").splitlines()), MAX_FILE_LINES)
    imported = 0
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                limit = MAX_TRITON_KERNEL_LINES if is_triton_kernel(node) else MAX_FUNCTION_LINES
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield Measure(f"{name}::{node.name}", "lines", lines, limit)
            case ast.ClassDef():
                methods = sum(
                    isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body
                )
                yield Measure(f"{name}::{node.name}", "methods", methods, MAX_METHODS)
            case ast.Import() | ast.ImportFrom() if getattr(node, "module", "") != "__future__":
                imported += len(node.names)
    yield Measure(name, "imported names", imported, MAX_IMPORTED_NAMES)


def complaints(found: list[Measure], allowed: dict[str, int]) -> list[str]:
    """What is too large, and which entries of the list no longer say how large something is."""
    too_large = {measure.what: measure for measure in found if measure.size > measure.limit}
    texts = [
        f"{measure.what} has {measure.size} {measure.unit}, at most {measure.limit} are allowed"
        for measure in too_large.values()
        if measure.what not in allowed
    ]
    for what, size in allowed.items():
        if what not in too_large:
            texts.append(f"{what} is listed as an exception, but is not too large any more")
        elif too_large[what].size > size:
            texts.append(f"{what} grew from {size} to {too_large[what].size}")
        elif too_large[what].size < size:
            texts.append(f"{what} shrank to {too_large[what].size}: lower its number from {size}")
    return texts


def listed_exceptions() -> dict[str, int]:
    text = (ROOT / "tests/hygiene/size_exceptions.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text).get("exception", [])
    assert all(entry["reason"] for entry in entries)
    return {entry["what"]: entry["size"] for entry in entries}


def test_everything_is_small_enough_or_listed() -> None:
    found = [measure for path in sources() for measure in measures(path, syntax(path))]
    assert complaints(found, listed_exceptions()) == []


def test_measures_count_files_functions_methods_and_imports() -> None:
    text = "import a, b\nfrom c import d\nclass E:\n    def f(self):\n        pass\n"
    path = ROOT / "tests/hygiene/test_sizes.py"
    found = {
        (measure.what.partition("::")[2], measure.unit): measure.size
        for measure in measures(path, ast.parse(text))
    }
    assert found[("f", "lines")] == 2
    assert found[("E", "methods")] == 1
    assert found[("", "imported names")] == 3


def test_an_exception_must_name_the_present_size() -> None:
    function = Measure("a.py::f", "lines", 60, MAX_FUNCTION_LINES)
    assert complaints([function], {}) == ["a.py::f has 60 lines, at most 50 are allowed"]
    assert complaints([function], {"a.py::f": 60}) == []
    assert complaints([function], {"a.py::f": 55}) == ["a.py::f grew from 55 to 60"]
    assert complaints([function], {"a.py::f": 70}) == [
        "a.py::f shrank to 60: lower its number from 70"
    ]
    assert complaints([], {"a.py::f": 60}) == [
        "a.py::f is listed as an exception, but is not too large any more"
    ]
