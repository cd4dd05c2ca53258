"""Finds where a name in a Python file means a certain definition of some module, by Python's scopes."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import Final

from scripts.repository import Edit, Offsets

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Scope = ast.Module | ast.ClassDef | _Function
_Node = ast.expr | ast.stmt | ast.alias
_TAKE_NAMES: Final = ("setattr", "getattr", "hasattr", "delattr", "object")


class Uses:
    """Of a name that some modules have, in one file; `is_home` where it is defined."""

    def __init__(
        self, tree: ast.Module, name: str, modules: Collection[str], *, is_home: bool = False
    ) -> None:
        self._name = name
        self._modules = modules
        self._tree = tree
        self._is_home = is_home
        self._nodes: list[_Node] = []
        """Each begins with the name, or with a keyword and the name."""
        self._in_module = is_home
        self._in_module = self._look_into(tree, inherited=False)
        self.is_bound = bool(self._nodes)
        """Whether the name is bound to it here, or imported with an alias."""

    @property
    def can_be_imported(self) -> bool:
        """Whether other files can import it from this one."""
        return self._in_module

    def edits(self, text: str, new: str) -> Iterator[Edit]:
        """What to change for a new name."""
        offsets = Offsets(text)
        word = re.compile(rf"(?<!\w){re.escape(self._name)}(?!\w)")
        for node in self._nodes:
            start, end = offsets.span(node)
            found = word.search(text, start)
            if isinstance(node, ast.alias) and node.asname == new:
                yield Edit(start, end, new)
            elif found and (found.start() == start or isinstance(node, ast.stmt)):
                yield Edit(*found.span(), new)
        for attribute in self._attributes():
            end = offsets.span(attribute)[1]
            yield Edit(end - len(self._name), end, new)
        for string in self._strings():
            for found in word.finditer(text, *offsets.span(string)):
                yield Edit(*found.span(), new)

    def _look_into(self, scope: _Scope, *, inherited: bool) -> bool:
        """Collect the uses in a scope and in those within it; return whether the name is ours there."""
        nodes, inner = _contents(scope)
        bindings = [each for node in nodes for each in self._bindings(node, scope)]
        if isinstance(scope, _Function):
            bindings += [False] * (self._name in {each.arg for each in _arguments(scope)})
        is_ours = any(bindings) or (inherited and not bindings)
        for node in nodes:
            self._nodes += self._named(node) if is_ours else self._aliased(node)
        passed_on = inherited if isinstance(scope, ast.ClassDef) else is_ours
        for each in inner:
            self._look_into(each, inherited=passed_on)
        return is_ours

    def _bindings(self, node: ast.AST, scope: _Scope) -> Iterator[bool]:
        """What binds the name in a scope: our definition or another one."""
        name = self._name
        match node:
            case ast.Name(id=bound) if bound == name and not isinstance(node.ctx, ast.Load):
                yield self._is_home and isinstance(scope, ast.Module)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                yield self._is_home and isinstance(scope, ast.Module)
            case ast.ImportFrom():
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        yield alias.name == name and node.module in self._modules
            case ast.Import():
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        yield False
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name == name:
                yield False
            case ast.Global() if name in node.names:
                yield self._in_module

    def _named(self, node: ast.AST) -> Iterator[_Node]:
        match node:
            case ast.Name(id=name) if name == self._name:
                yield node
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name == self._name:
                    yield node
            case ast.Global() | ast.Nonlocal() if self._name in node.names:
                yield node
            case ast.ImportFrom() if node.module in self._modules:
                yield from (alias for alias in node.names if alias.name == self._name)

    def _aliased(self, node: ast.AST) -> Iterator[_Node]:
        if isinstance(node, ast.ImportFrom):
            yield from self._named(node)

    def _attributes(self) -> Iterator[ast.Attribute]:
        """`module.Name`, for each way in which a module is imported here."""
        modules = set(self._module_names())
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Attribute) or node.attr != self._name:
                continue
            if ast.unparse(node.value) in modules:
                yield node

    def _module_names(self) -> Iterator[str]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                yield from (a.asname or a.name for a in node.names if a.name in self._modules)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in self._modules:
                        yield alias.asname or alias.name

    def _strings(self) -> Iterator[ast.Constant]:
        """Annotations that are strings, `__all__`, and `setattr(module, "Name", …)`."""
        modules = set(self._module_names())
        for node in ast.walk(self._tree):
            match node:
                case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                    first = ast.unparse(node.args[0]) if node.args else ""
                    if called in _TAKE_NAMES and first in modules:
                        yield from self._constants(*node.args[1:2])
                    elif called == "cast" and self._in_module:
                        yield from self._constants(*node.args[:1], exactly=False)
                case ast.Assign(targets=[ast.Name(id="__all__")]) if self._in_module:
                    yield from self._constants(node.value)
                case ast.arg(annotation=ast.expr() as annotation) if self._in_module:
                    yield from self._constants(annotation, exactly=False)
                case ast.AnnAssign() if self._in_module:
                    yield from self._constants(node.annotation, exactly=False)
                case ast.FunctionDef() | ast.AsyncFunctionDef() if self._in_module:
                    yield from self._constants(*[node.returns] * bool(node.returns), exactly=False)

    def _constants(self, *roots: ast.AST | None, exactly: bool = True) -> Iterator[ast.Constant]:
        nodes = [node for root in roots if root for node in ast.walk(root)]
        values = [node for node in nodes if isinstance(node, ast.Subscript)]
        literal = {
            id(each)
            for node in values
            if ast.unparse(node.value).endswith("Literal")
            for each in ast.walk(node.slice)
        }
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if id(node) not in literal and (node.value == self._name or not exactly):
                yield node


def _arguments(function: _Function) -> list[ast.arg]:
    found = function.args
    more = [each for each in (found.vararg, found.kwarg) if each]
    return [*found.posonlyargs, *found.args, *found.kwonlyargs, *more]


def _contents(scope: _Scope) -> tuple[list[ast.AST], list[_Scope]]:
    """What is evaluated in a scope, definitions within it included, and the scopes of these definitions."""
    body = [scope.body] if isinstance(scope, ast.Lambda) else scope.body
    waiting: list[ast.AST] = list(body)
    nodes: list[ast.AST] = []
    inner: list[_Scope] = []
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, ast.ClassDef):
            inner.append(node)
            waiting += [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, _Function):
            inner.append(node)
            waiting += [*node.args.defaults, *(each for each in node.args.kw_defaults if each)]
            waiting += [each.annotation for each in _arguments(node) if each.annotation]
            if not isinstance(node, ast.Lambda):
                waiting += [*node.decorator_list, *([node.returns] if node.returns else [])]
        else:
            waiting += ast.iter_child_nodes(node)
    return nodes, inner
