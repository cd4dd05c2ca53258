"""Nothing is unpickled, and no code is read from data; the pipe to an engine is the one exception."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.hygiene.tree import ROOT, name_of, syntax

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
_LAST_NAMES = {call.rpartition(".")[2] for call in _CALLS}

_ALLOWED = {
    ("src/pagemesh/engine_process/pipe.py", "multiprocessing"),
    ("src/pagemesh/engine_process/pipe.py", "pickle"),
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
        # Most calls are of something else, and are not written out to find that.
        elif isinstance(node, ast.Call) and _last_name(node.func) in _LAST_NAMES:
            yield ast.unparse(node.func)


def _last_name(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def found(sources: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """What stands in sources, by path, that must not."""
    return {
        (path, use)
        for path, tree in sources.items()
        for use in _uses(tree)
        if use in _MODULES | _CALLS
    }


def found_in(text: str) -> set[tuple[str, str]]:
    return found({"a.py": ast.parse(text)})


def test_nothing_is_unpickled() -> None:
    sources = {
        name_of(path): syntax(path) for root in _ROOTS for path in Path(ROOT / root).rglob("*.py")
    }
    assert found(sources) == _ALLOWED


def test_what_is_looked_for_is_found() -> None:
    assert found_in("from torch import load") == {("a.py", "torch.load")}
    assert found_in("def f():\n    import pickle as p") == {("a.py", "pickle")}
    assert found_in("from multiprocessing.connection import Listener") == {
        ("a.py", "multiprocessing")
    }
    assert found_in("torch.load(path)") == {("a.py", "torch.load")}
    assert found_in("model.load(path)\nmodel.eval()") == set()
