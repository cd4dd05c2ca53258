"""Where texts mention files that move: imports, module names, paths, links; and what only looks as if it did."""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from scripts.repository import IMPORTED_FROM_THE_ROOT, PRODUCT, Edit, Offsets, Repository, module_of

_DOTTED: Final = re.compile(
    rf"(?<![\w.-])(?:{'|'.join((PRODUCT, *IMPORTED_FROM_THE_ROOT))})(?:\\?\.[A-Za-z_]\w*)+"
)
_IMPORT: Final = re.compile(
    rf"\bfrom ({PRODUCT}[\w.]*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)"
)
_PATH: Final = re.compile(r"(?<![\w./-])[\w.-]*(?:/[\w.-]*)+")
_LINK: Final = re.compile(
    r"""\]\(\s*<?([^)\s>#]+)|^\s*\[[^]]+\]:\s*([^\s#]+)|(?:href|src)="([^"#]+)""", re.MULTILINE
)
_PAGE: Final = re.compile(r"(?<![\w./-])([\w./-]+\.md)\b")
_QUOTED: Final = re.compile(r"""(?<=["'`])\w+(?:\.\w+)*(?=["'`])""")
_LISTS: Final = "tests/hygiene/"
"""Tests with lists of modules by their names below `pagemesh`."""
_PATTERN: Final = re.compile(rf"(?<![\w.])({PRODUCT}(?:\.\w+)+)\.[{{*%]|([\w.-]+/[\w./-]+)/[{{*%]")


class Mentions:
    """Finds the mentions of files by their paths of before."""

    def __init__(self, repository: Repository, moves: Mapping[str, str]) -> None:
        self.moves = moves
        self._files = repository.files
        self._known = {name for path in repository.files if (name := module_of(path))}
        self._modules = _moved_modules(moves)
        self._parents = {name.rpartition(".")[0] for name in self._modules}
        """Packages out of which modules move."""
        inner = {name.rpartition(".")[0] for name in self._known}
        self.packages = self._parents | (self._modules.keys() & inner)
        """Those, and packages that move: imports from them may need to be divided."""
        self._own_names = _own_names(repository, self.packages)
        self._folders = _moved_folders(repository.files, moves)
        self._all_folders = {f for path in repository.files for f in _folders_of(path)}
        self._shaken = {f for path in moves for f in _folders_of(path)} - self._folders.keys()
        self._roots = {path.partition("/")[0] for path in repository.files}
        self._paths = {old: new for old, new in moves.items() if "/" in old}
        self._bare: dict[str, str] = {}
        self._add_short_forms()
        self._parts = _last_parts(moves, self._folders)

    def _add_short_forms(self) -> None:
        for old, new in self.moves.items():
            if PRODUCT in old.split("/")[:-1]:
                short, new_short = _below_root(old), _below_root(new)
                self._paths[short] = new_short
                words = short.removeprefix(f"{PRODUCT}/")
                if "/" in words and words not in self._files and new_short != new:
                    self._bare[words] = new_short.removeprefix(f"{PRODUCT}/")
            if old.endswith(".py") and new.endswith(".py"):
                stem = old.removesuffix(".py")
                self._bare[stem] = new.removesuffix(".py")
                self._bare[_below_root(stem)] = _below_root(new).removesuffix(".py")
        for old, new in self._folders.items():
            self._bare[old] = new
            self._bare[_below_root(old)] = _below_root(new)

    def target(self, package: str, name: str) -> tuple[str, str]:
        """The package and name that an import of a name from a package becomes."""
        module = f"{package}.{name}"
        if module not in self._known or name in self._own_names.get(package, ()):
            return self._modules.get(package, package), name
        package, _, name = self._modules.get(module, module).rpartition(".")
        return package, name

    def edits(self, path: str, text: str) -> Iterator[Edit]:
        """All mentions but the imports of a syntax tree; a link that stays is one that changes nothing."""
        yield from self._link_edits(path, text)
        for match in _IMPORT.finditer(text):
            names = [part.split(" as ") for part in match[2].split(", ")]
            pairs = [(name, alias[0] if alias else None) for name, *alias in names]
            if any(f"{match[1]}.{name}" in self._known for name, _ in pairs):
                yield Edit(*match.span(), "; ".join(self.statements(match[1], pairs)))
        for match in _PATH.finditer(text):
            if found := self._in_path(match[0]):
                start, end, new = found
                yield Edit(match.start() + start, match.start() + end, new)
        if path.startswith(_LISTS):
            for match in _QUOTED.finditer(text):
                new = self._modules.get(f"{PRODUCT}.{match[0]}", "")
                if new.startswith(f"{PRODUCT}."):
                    yield Edit(*match.span(), new.removeprefix(f"{PRODUCT}."))
        for match in _DOTTED.finditer(text):
            name = match[0].replace("\\", "")
            while name not in self._known and "." in name:
                name = name.rpartition(".")[0]
            if name in self._modules:
                dot = "\\." if "\\" in match[0] else "."
                end = match.start() + len(name.replace(".", dot))
                yield Edit(match.start(), end, self._modules[name].replace(".", dot))

    def statements(self, package: str, names: Iterable[tuple[str, str | None]]) -> list[str]:
        """Imports of names, with their aliases, from a package, as they are after the moves."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name, alias in names:
            new_package, new = self.target(package, name)
            bound = alias or name
            groups[new_package].append(new if bound == new else f"{new} as {bound}")
        return [f"from {module} import {', '.join(parts)}" for module, parts in groups.items()]

    def _link_edits(self, path: str, text: str) -> Iterator[Edit]:
        pattern, folder = _LINK, posixpath.dirname(path)
        new_folder = posixpath.dirname(self.moves.get(path, path))
        if path == "mkdocs.yml":
            pattern, folder, new_folder = _PAGE, "docs", "docs"
        elif not path.endswith(".md"):
            return
        for match in pattern.finditer(text):
            group = match.lastindex or 0
            aim = posixpath.normpath(posixpath.join(folder, match[group]))
            if aim in self._files or aim in self._all_folders:
                new = self.moves.get(aim) or self._folders.get(aim) or aim
                slash = "/" if match[group].endswith("/") else ""
                link = posixpath.relpath(new, new_folder or ".") + slash
                stays = new == aim and new_folder == folder
                yield Edit(*match.span(group), match[group] if stays else link)

    def _in_path(self, token: str) -> tuple[int, int, str] | None:
        """The part of a path that is a moved file or folder, or one without its suffix, and what it becomes."""
        parts = token.rstrip(".").split("/")
        offset = 0
        for first, part in enumerate(parts):
            for last in range(len(parts), first, -1):
                old = "/".join(parts[first:last])
                if old in self._paths:
                    return offset, offset + len(old), self._paths[old]
                # Without a root or a suffix it may be another thing: an image, a folder elsewhere.
                is_whole = first == 0 and ("/" in old or last < len(parts))
                is_below_root = old.split("/")[0] in self._roots
                if old in self._bare and (is_whole or (is_below_root and "/" in old)):
                    return offset, offset + len(old), self._bare[old]
            offset += len(part) + 1
        return None

    def doubtful(self, path: str, text: str) -> Iterator[int]:
        """Offsets of what may mean a moved file, and is left as it is."""
        for match in _PATH.finditer(text):
            words = match[0].strip("./").removesuffix(".py")
            is_shaken = words in self._shaken and not self._remains(words)
            if (words in self._parts or is_shaken) and not self._in_path(match[0]):
                yield match.start()
        for match in _QUOTED.finditer(text):
            is_followed = path.startswith(_LISTS) and f"{PRODUCT}.{match[0]}" in self._modules
            if match[0] in self._parts and not is_followed:
                yield match.start()
        for match in _PATTERN.finditer(text):
            if match[1] in self._parents or match[2] in self._shaken:
                yield match.start()

    def _remains(self, folder: str) -> bool:
        return any(path.startswith(f"{folder}/") and path not in self.moves for path in self._files)


def _moved_modules(moves: Mapping[str, str]) -> dict[str, str]:
    pairs = ((module_of(old), module_of(new)) for old, new in moves.items())
    return {old: new for old, new in pairs if old and new and old != new}


def _own_names(repository: Repository, packages: set[str]) -> dict[str, set[str]]:
    """What packages define themselves: an import takes it before a module of that name."""
    found: dict[str, set[str]] = {}
    for path in repository.files:
        module = module_of(path) or ""
        if module in packages and path.endswith("/__init__.py"):
            found[module] = {
                node.name
                for node in ast.parse(repository.texts[path]).body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            }
    return found


def _folders_of(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _moved_folders(files: set[str], moves: Mapping[str, str]) -> dict[str, str]:
    """Folders all of whose files go to one folder, with the folders below them kept."""
    targets: dict[str, set[str | None]] = defaultdict(set)
    for path in files:
        for folder in _folders_of(path):
            below = posixpath.dirname(path)[len(folder) :]
            new = posixpath.dirname(moves.get(path, ""))
            keeps = bool(new) and new.endswith(below)
            targets[folder].add(new.removesuffix(below) if keeps else None)
    return {
        folder: new
        for folder, (new, *others) in ((folder, list(news)) for folder, news in targets.items())
        if new and not others and new != folder
    }


def _below_root(path: str) -> str:
    """From `pagemesh/` on, as in a wheel."""
    at = f"/{path}".find(f"/{PRODUCT}/")
    return path[at:] if at >= 0 else path


def _last_parts(moves: Mapping[str, str], folders: Mapping[str, str]) -> set[str]:
    """The ends of names of moved files that say too little to be followed: `package/module`, `module.py`."""
    found = set()
    for old, new in moves.items():
        if old.endswith("/__init__.py"):
            continue
        words = _below_root(old).removesuffix(".py").split("/")
        for first in range(1, len(words)):
            end = words[first:]
            if not f"/{new.removesuffix('.py')}".endswith("/" + "/".join(end)):
                found |= {"/".join(end), ".".join(end)} if len(end) > 1 else {f"{end[0]}.py"}
    for old in folders:
        words = _below_root(old).split("/")
        if words[0] == PRODUCT and len(words) > 2:
            found |= {".".join(words[1:]), "/".join(words[1:])}
    return found


def import_edits(text: str, mentions: Mentions) -> Iterator[Edit]:
    """Imports of moved modules from their packages, and the uses of those whose last name changes."""
    if not any(f"from {package} import" in text for package in mentions.packages):
        return
    tree = ast.parse(text)
    offsets = Offsets(text)
    names = _Names(tree)
    for node in names.imports:
        if node.level or node.module not in mentions.packages:
            continue
        kept: list[tuple[str, str | None]] = []
        for alias in node.names:
            package, new = mentions.target(node.module, alias.name)
            moves_alone = f"{package}.{new}" != f"{node.module}.{alias.name}"
            uses = [offsets.span(use) for use in names.uses[alias.name]]
            if (
                moves_alone
                and not alias.asname
                and names.may_become(node, alias.name, new)
                # In Python 3.11 positions within strings may be wrong.
                and all(text[start:end] == alias.name for start, end in uses)
            ):
                yield from (Edit(*use, new) for use in uses)
                kept.append((alias.name, new))
            else:
                kept.append((alias.name, alias.asname))
        yield from _statement_edits(text, offsets, node, mentions, kept)


def _statement_edits(
    text: str,
    offsets: Offsets,
    node: ast.ImportFrom,
    mentions: Mentions,
    names: list[tuple[str, str | None]],
) -> Iterator[Edit]:
    assert node.module is not None
    start, end = offsets.span(node)
    statements = mentions.statements(node.module, names)
    if len(statements) > 1:
        before = text[text.rfind("\n", 0, start) + 1 : start]
        statements = [*re.findall("#.*", text[start:end]), *statements]
        yield Edit(start, end, ("; " if before.strip() else f"\n{before}").join(statements))
        return
    package = mentions.target(node.module, names[0][0])[0]
    at = text.index(node.module, start)
    yield Edit(at, at + len(node.module), package)
    for alias, pair in zip(node.names, names, strict=True):
        new = mentions.statements(node.module, [pair])[0].partition(" import ")[2]
        yield Edit(*offsets.span(alias), new)


class _Names:
    """The identifiers of a module, and how they are bound."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: list[ast.ImportFrom] = []
        self.uses: dict[str, list[ast.Name]] = defaultdict(list)
        self._bound: dict[str, set[str]] = defaultdict(set)
        """By name, what binds it: the whole name of what is imported, or nothing."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                self.uses[node.id].append(node)
                if not isinstance(node.ctx, ast.Load):
                    self._bound[node.id].add("")
            elif isinstance(node, ast.ImportFrom):
                self.imports.append(node)
                for each in node.names:
                    self._bound[each.asname or each.name].add(f"{node.module}.{each.name}")
            elif isinstance(node, ast.Import):
                for each in node.names:
                    self._bound[each.asname or each.name.partition(".")[0]].add(each.name)
            elif isinstance(node, ast.arg):
                self._bound[node.arg].add("")
            elif (
                isinstance(
                    node,
                    ast.FunctionDef
                    | ast.AsyncFunctionDef
                    | ast.ClassDef
                    | ast.ExceptHandler
                    | ast.MatchAs
                    | ast.MatchStar,
                )
                and node.name
            ):
                self._bound[node.name].add("")

    def may_become(self, node: ast.ImportFrom, old: str, new: str) -> bool:
        """Whether a name means the imported module wherever it stands, and the new one is free."""
        is_alone = self._bound[old] == {f"{node.module}.{old}"}
        return old != new and is_alone and new not in self.uses and new not in self._bound
