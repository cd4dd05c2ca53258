"""Renames a class, function or constant of a module in all of the repository.

Code is changed where the name is bound by an import (scripts.scopes), texts where it follows the module's name, and
between backticks where the name is bound or nothing else has it. A module that imports the name passes it on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from scripts.repository import Edit, RefusedError, Repository, module_of
from scripts.scopes import Uses


class Rename(NamedTuple):
    """`module:Old=New`."""

    module: str
    old: str
    new: str

    @classmethod
    def parse(cls, text: str) -> Rename:
        """From an argument of the command line."""
        match = re.fullmatch(r"([\w.]+):([A-Za-z_]\w*)=([A-Za-z_]\w*)", text)
        if match is None:
            raise RefusedError(f"{text}: a renaming is module:Old=New")
        return cls(*match.groups())


def rename(repository: Repository, renames: Sequence[Rename]) -> list[str]:
    """Change the texts, one renaming after the other; return what to look at."""
    return [note for each in renames for note in _Renaming(repository, each).run()]


class _Renaming:
    def __init__(self, repository: Repository, what: Rename) -> None:
        self._repository = repository
        self._what = what
        self._word = re.compile(rf"(?<!\w){re.escape(what.old)}(?!\w)")
        self._trees = {
            path: ast.parse(text)
            for path, text in repository.texts.items()
            if path.endswith(".py") and self._word.search(text)
        }
        paths = {name: path for path in self._trees if (name := module_of(path))}
        self._home = paths.get(what.module, "")
        if not self._home or what.old not in _definitions(self._trees[self._home]):
            raise RefusedError(f"{what.module}:{what.old}: no such definition")
        self._modules = self._modules_with_it(paths)
        self._uses = {path: self._uses_in(path, self._modules) for path in self._trees}
        self._edited = {path for path, uses in self._uses.items() if uses.is_bound}

    def _uses_in(self, path: str, modules: Collection[str]) -> Uses:
        return Uses(self._trees[path], self._what.old, modules, is_home=path == self._home)

    def _modules_with_it(self, paths: dict[str, str]) -> set[str]:
        """Its own, and those that import it or name it as what they load later."""
        found = {self._what.module}
        size = 0
        while size < len(found):
            size = len(found)
            found |= {
                module
                for module, path in paths.items()
                if self._uses_in(path, found).can_be_imported
                or any(True for _ in _named_with_module(self._repository.texts[path], self._what))
            }
        return found

    def run(self) -> list[str]:
        """Do it; return where the name is left and may mean this definition."""
        what, texts = self._what, self._repository.texts
        self._refuse_a_name_that_is_taken()
        is_word = what.old.lower() == what.old
        owners = sum(what.old in _definitions(tree) for tree in self._trees.values())
        everywhere = owners == 1 and not is_word
        self._repository.edit(self._edits_everywhere if everywhere else self._edits)
        return [
            self._repository.line_of(path, match.start())
            for path, text in texts.items()
            if not is_word and (everywhere or path in self._edited) and what.old in text
            for match in self._word.finditer(text)
        ]

    def _edits(self, path: str, text: str) -> Iterator[Edit]:
        what = self._what
        if what.old not in text:
            return
        if path in self._uses:
            yield from self._uses[path].edits(text, what.new)
        for module in self._modules:
            for match in re.finditer(rf"(?<![\w.]){re.escape(module)}[.:]{what.old}(?!\w)", text):
                yield Edit(match.end() - len(what.old), match.end(), what.new)
        yield from _named_with_module(text, what)
        if path.endswith(".toml"):
            yield from self._table_edits(text)
        if path in self._edited:
            yield from _between_backticks(text, what)

    def _edits_everywhere(self, path: str, text: str) -> Iterator[Edit]:
        yield from self._edits(path, text)
        yield from _between_backticks(text, self._what)

    def _table_edits(self, text: str) -> Iterator[Edit]:
        """In tables that name a file which uses it: what tests break or wait for, exceptions."""
        names = self._edited | {name for path in self._edited if (name := module_of(path))}
        named = re.compile("|".join(rf"(?<![\w./]){re.escape(name)}(?=[\":'])" for name in names))
        starts = [match.start() for match in re.finditer(r"^\[", text, re.MULTILINE)]
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            if named.search(text, start, end):
                for match in self._word.finditer(text, start, end):
                    yield Edit(*match.span(), self._what.new)

    def _refuse_a_name_that_is_taken(self) -> None:
        new = self._what.new
        if taken := [path for path in sorted(self._edited) if _binds(self._trees[path], new)]:
            raise RefusedError(f"{self._what.old}={new}: the name is taken in {', '.join(taken)}")


def _definitions(tree: ast.Module) -> set[str]:
    """Classes, functions and constants of a module."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether the name is in use, but for an alias of an import, which can be what it is renamed to."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=found) | ast.arg(arg=found) | ast.alias(name=found, asname=None):
                if found == name:
                    return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                return True
    return False


def _named_with_module(text: str, what: Rename) -> Iterator[Edit]:
    """`"Old": "module"`, as packages list what they load later."""
    module = re.escape(what.module)
    for match in re.finditer(rf"""(["']){what.old}\1:\s*(["']){module}\2""", text):
        yield Edit(match.start() + 1, match.start() + 1 + len(what.old), what.new)


def _between_backticks(text: str, what: Rename) -> Iterator[Edit]:
    for match in re.finditer(rf"`{what.old}(?=[`.(\[:])", text):
        yield Edit(match.start() + 1, match.end(), what.new)
