"""Puts several modules into one file: their imports once, their code one behind the other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter


class MergeError(Exception):
    """The modules cannot be merged as they are."""


@dataclass
class _Parts:
    """A module, taken apart."""

    imports: list[str] = field(default_factory=list)
    typing_imports: list[str] = field(default_factory=list)
    """Of `if TYPE_CHECKING`."""
    code: str = ""
    names: set[str] = field(default_factory=set)


def merge(texts: Mapping[str, str], module: str, docstring: str) -> str:
    """The text of one module out of several, by their paths; `module` is its name, `docstring` what it says.

    Their imports name what they import from each other by the new name already; what they assign alike, such as
    their loggers, is there once. MergeError tells what two of them
    define, and imports of the new module that are no plain names. The result wants its imports sorted and to be
    formatted.
    """
    parts: dict[str, _Parts] = {}
    owners: dict[str, str] = {}
    assigned: set[str] = set()
    for path in _in_order(texts):
        parts[path] = part = _take_apart(texts[path], module, assigned)
        for name in sorted(part.names):
            if name in owners:
                raise MergeError(f"{name} is defined in {owners[name]} and in {path}")
            owners[name] = path
    imports = dict.fromkeys(line for part in parts.values() for line in part.imports)
    typing = dict.fromkeys(line for part in parts.values() for line in part.typing_imports)
    _check_imports((*imports, *typing), owners)
    blocks = [
        f'"""{docstring}"""',
        "from __future__ import annotations",
        "\n".join(imports),
        "if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in typing) if typing else "",
        *(part.code for part in parts.values()),
    ]
    return "\n\n\n".join(filter(None, blocks)) + "\n"


def _check_imports(lines: Iterable[str], owners: Mapping[str, str]) -> None:
    """Raise MergeError where two imports, or an import and a definition, have the same name."""
    origins: dict[str, str] = {}
    for line in lines:
        node = ast.parse(line).body[0]
        assert isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names:
            name = each.asname or each.name.partition(".")[0]
            origin = f"{getattr(node, 'module', '')}.{each.name if each.asname or name == each.name else name}"
            if name in owners:
                raise MergeError(f"{name} is imported, and defined in {owners[name]}")
            if origins.setdefault(name, origin) != origin:
                raise MergeError(f"{name} is imported from {origins[name]} and {origin}")


def _in_order(texts: Mapping[str, str]) -> list[str]:
    """What another one's module level may need comes first; else as given."""
    trees = {path: ast.parse(text) for path, text in texts.items()}
    defines = {
        path: {n for node in tree.body for n in _bound(node)} for path, tree in trees.items()
    }
    needs: dict[str, list[str]] = {}
    for path, tree in trees.items():
        used = {name for node in tree.body for name in _used_at_import(node)}
        used -= defines[path]
        needs[path] = [each for each in texts if used & defines[each]]
    order = TopologicalSorter(needs)
    try:
        return list(order.static_order())
    except CycleError as error:
        raise MergeError(f"{' and '.join(error.args[1])} need each other") from error


def _used_at_import(node: ast.AST) -> set[str]:
    """Names that running a statement of a module or class looks up; annotations are not run."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [each for each in node.args.kw_defaults if each is not None]
            parts: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *defaults]
        case ast.ClassDef():
            parts = [*node.decorator_list, *node.bases, *node.keywords]
            return _names_in(parts) | {n for each in node.body for n in _used_at_import(each)}
        case ast.AnnAssign():
            parts = [] if node.value is None else [node.value]
        case _:
            parts = [node]
    return _names_in(parts)


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def _take_apart(text: str, module: str, assigned: set[str]) -> _Parts:
    """`assigned` are the assignments so far, which are left out, and becomes larger by those of this text."""
    tree, lines = ast.parse(text), text.splitlines()
    parts = _Parts()
    left_out: set[int] = set()
    for index, node in enumerate(tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            parts.imports += [] if is_docstring else _kept(node, module)
        elif _is_for_types(node):
            assert isinstance(node, ast.If)
            parts.typing_imports += [line for each in node.body for line in _kept(each, module)]
        elif not (isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node) in assigned):
            parts.names |= _bound(node)
            assigned.add(ast.unparse(node))
            continue
        left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in left_out]
    parts.code = "\n".join(kept).strip("\n")
    return parts


def _kept(node: ast.stmt, module: str) -> Sequence[str]:
    """An import, in a line; none for what will be in the same module."""
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__":
            return ()
        if node.module == module:
            if renamed := [each.name for each in node.names if each.asname]:
                raise MergeError(f"{', '.join(renamed)} of {module} has another name in it")
            return ()
        if module in (f"{node.module}.{each.name}" for each in node.names):
            raise MergeError(f"{module} is imported as a module in it")
    return (ast.unparse(node),)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement defines for its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return {
        each.id
        for target in targets
        for each in ast.walk(target)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
