"""Nothing is unpickled, and no code is read from data; the pipe to an engine is the one exception."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.hygiene.tree import ROOT

_ROOTS = ("src", "services", "kernels", "gateway")

_MODULES = {
    "cloudpickle",
    "dill",
    "jsonpickle",
    "joblib",
    "marshal",
    "multiprocessing",
    "pickle",
    "shelve",
}

_CALLS = {"eval", "exec", "torch.load", "torch.save", "numpy.load", "np.load", "yaml.unsafe_load"}

_ALLOWED = {
    ("src/pagemesh/engine/pipe.py", "multiprocessing"),
    ("src/pagemesh/engine/pipe.py", "pickle"),
}
"""Says of itself why, and what it does not read."""


def _uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            yield module
            # `from torch import load` and the like.
            for name in node.names:
                yield f"{module}.{name.name}"
        elif isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def found(sources: dict[str, str]) -> set[tuple[str, str]]:
    """What stands in sources, by path, that must not."""
    return {
        (path, use)
        for path, text in sources.items()
        for use in _uses(ast.parse(text))
        if use in _MODULES | _CALLS
    }


def test_nothing_is_unpickled() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for root in _ROOTS
        for path in Path(ROOT / root).rglob("*.py")
    }
    assert found(sources) == _ALLOWED


def test_what_is_looked_for_is_found() -> None:
    assert found({"a.py": "from torch import load"}) == {("a.py", "torch.load")}
    assert found({"a.py": "def f():\n    import pickle as p"}) == {("a.py", "pickle")}
    assert found({"a.py": "from multiprocessing.connection import Listener"}) == {
        ("a.py", "multiprocessing")
    }
    assert found({"a.py": "torch.load(path)"}) == {("a.py", "torch.load")}
    assert found({"a.py": "model.load(path)\nmodel.eval()"}) == set()
