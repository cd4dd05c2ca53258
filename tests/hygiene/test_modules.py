"""Every module says what it is, and exports only what it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.hygiene.tree import name_of, sources, syntax


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Module-level statements, those under `if` and `try` included."""
    for statement in body:
        yield statement
        for nested in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, ast.If | ast.Try):
                yield from statements(
                    [
                        child
                        for child in getattr(statement, nested, [])
                        if isinstance(child, ast.stmt)
                    ]
                )


def bound_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in statements(tree.body):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(statement.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
            case ast.Assign():
                names |= {
                    name.id
                    for target in statement.targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def exported_names(tree: ast.Module) -> list[str]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
    return []


def missing_exports(tree: ast.Module) -> list[str]:
    bound = bound_names(tree)
    if "__getattr__" in bound:
        return []
    return [name for name in exported_names(tree) if name not in bound]


def test_every_module_has_a_docstring() -> None:
    bare = [
        name_of(path)
        for path in sources()
        if not ast.get_docstring(syntax(path)) and not is_test(path)
    ]
    assert bare == []


def is_test(path: Path) -> bool:
    return name_of(path).startswith("tests/")


def undocumented_interface_methods(tree: ast.Module) -> list[str]:
    """Of Protocols, whose implementations say nothing again."""
    return [
        f"{node.name}.{method.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and (not method.name.startswith("_") or method.name == "__call__")
        and not ast.get_docstring(method)
    ]


def test_every_method_of_an_interface_has_a_docstring() -> None:
    bare = {name_of(path): undocumented_interface_methods(syntax(path)) for path in sources()}
    product = {path: names for path, names in bare.items() if not path.startswith("tests/")}
    assert {path: names for path, names in product.items() if names} == {}


def test_an_interface_that_says_nothing_is_noticed() -> None:
    said = 'class A(Protocol[T]):\n    def f(self):\n        """F."""\n    async def g(self): ...\n'
    assert undocumented_interface_methods(ast.parse(said + "class B:\n    def h(self): ...")) == [
        "A.g"
    ]


def test_every_exported_name_exists() -> None:
    missing = {name_of(path): missing_exports(syntax(path)) for path in sources()}
    assert {path: names for path, names in missing.items() if names} == {}


def test_a_missing_export_is_noticed() -> None:
    tree = ast.parse("import a.b\nfrom c import d as e\nF: int = 1\n__all__ = ['a', 'e', 'F', 'g']")
    assert missing_exports(tree) == ["g"]
