"""Finds the source lines of a symbol without importing anything.

A symbol is a module as it is imported, and behind a colon the qualified name of a function, a method or a class in it,
or a name that the module assigns: `pagemesh.scheduler.scheduler:Scheduler.schedule`. Without a colon it is the whole
module. Nested functions are named like methods, without `<locals>`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Final

_NAMESPACE: Final = "pagemesh"
_COPIES: Final = ("build", "dist")
"""Folders in which builds leave copies of the code."""

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def package_roots(tree: Path) -> tuple[Path, ...]:
    """The folders of a repository that hold a portion of the `pagemesh` namespace; looked for once."""
    portions = [*tree.glob(f"[!.]*/{_NAMESPACE}"), *tree.glob(f"[!.]*/*/{_NAMESPACE}")]
    return tuple(
        portion.parent
        for portion in sorted(portions)
        if portion.relative_to(tree).parts[0] not in _COPIES and any(portion.rglob("*.py"))
    )


def module_of(path: PurePath) -> str:
    """The module that a file of a root is."""
    parts = list(path.with_suffix("").parts)
    # The last folder of this name: the repository may lie in one too.
    while _NAMESPACE in parts[1:]:
        del parts[: parts.index(_NAMESPACE, 1)]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_of(symbol: str, tree: Path) -> Path:
    """The file of the symbol's module; a LookupError when there is none."""
    relative = symbol.partition(":")[0].replace(".", "/")
    for root in package_roots(tree):
        for path in (root / f"{relative}.py", root / relative / "__init__.py"):
            if path.is_file():
                return path
    raise LookupError(f"no symbol {symbol}")


def spans(symbol: str, text: str) -> list[tuple[int, int]]:
    """Where in its module's text the symbol's lines begin and end, decorators included.

    There are several if it is defined more than once: overloads, a property with its setter, branches of an `if`. A
    LookupError when there is none.
    """
    name = symbol.partition(":")[2]
    if not name:
        return [(0, len(text))]
    # Not by splitlines(), which knows more ends of lines than Python's parser.
    starts = [0, *(newline.end() for newline in re.finditer("\n", text)), len(text)]
    found = [
        (starts[_first_line(node) - 1], starts[node.end_lineno or node.lineno])
        for defined, node in definitions(ast.parse(text))
        if defined == name
    ]
    if not found:
        raise LookupError(f"no symbol {symbol}")
    return found


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Everything with a qualified name below a module, what stands in `if`, `try` and `with` included."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield prefix + child.name, child
                yield from definitions(child, f"{prefix}{child.name}.")
            case ast.Assign() | ast.AnnAssign() if not prefix:
                yield from ((name, child) for name in _assigned(child))
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from definitions(child, prefix)


def _assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [
        part.id
        for target in targets
        for part in ast.walk(target)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, _Scope) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
