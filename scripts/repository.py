"""The tracked files of a repository in memory: read once, edited there, written and staged at the end."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

PRODUCT: Final = "pagemesh"
IMPORTED_FROM_THE_ROOT: Final = ("scripts", "tests", "tools")
_GENERATED: Final = re.compile(r"_pb2(_grpc)?\.pyi?$")


class RefusedError(Exception):
    """What is asked for cannot be done; nothing was changed."""


class Edit(NamedTuple):
    """Replaces a part of a text, given by its offsets."""

    start: int
    end: int
    new: str


def module_of(path: str) -> str | None:
    """`pagemesh.rpc.server` of `src/pagemesh/rpc/server.py`; None of what is not imported by its path."""
    parts = path.split("/")
    if not path.endswith(".py"):
        return None
    if PRODUCT in parts[:-1]:
        parts = parts[parts.index(PRODUCT) :]
    elif parts[0] not in IMPORTED_FROM_THE_ROOT:
        return None
    parts[-1] = parts[-1].removesuffix(".py")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def apply(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """The text with the edits, and how many changed something; of two that overlap the first given counts."""
    accepted: list[Edit] = []
    for edit in edits:
        if not any(edit.start < other.end and other.start < edit.end for other in accepted):
            accepted.append(edit)
    number = sum(text[start:end] != new for start, end, new in accepted)
    for start, end, new in sorted(accepted, reverse=True):
        text = text[:start] + new + text[end:]
    return text, number


class Offsets:
    """Turns the positions of a syntax tree, which count bytes of a line, into offsets in the text."""

    def __init__(self, text: str) -> None:
        # str.splitlines would divide lines at form feeds as well, which Python does not count.
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int) -> int:
        """The offset of a position."""
        before = self._lines[line - 1].encode()[:column]
        return self._starts[line - 1] + len(before.decode())

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """Where a node begins and ends."""
        end = self.at(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return self.at(node.lineno, node.col_offset), end


@dataclass
class Repository:
    """Paths are relative to the root, with slashes."""

    root: Path
    files: set[str] = field(default_factory=set)
    """All that git tracks."""
    texts: dict[str, str] = field(default_factory=dict)
    """Of the files that are text and not generated."""
    added: dict[str, str] = field(default_factory=dict)
    """New files, by the paths of after the moves."""
    removed: set[str] = field(default_factory=set)
    """Files that go."""
    num_edits: Counter[str] = field(default_factory=Counter)
    _written: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> Repository:
        """Read what git tracks."""
        names = git(root, "ls-files", "-z").split("\0")
        repository = cls(root)
        for name in names:
            path = root / name
            if not name or path.is_symlink() or not path.is_file():
                continue
            repository.files.add(name)
            if not _GENERATED.search(name):
                try:
                    repository.texts[name] = path.read_bytes().decode()
                except UnicodeDecodeError:
                    continue
        repository._written = dict(repository.texts)
        return repository

    def edit(self, edits_of: Callable[[str, str], Iterable[Edit]]) -> None:
        """Change every text by the edits that a function gives for its path and text."""
        for path, text in self.texts.items():
            self.texts[path], number = apply(text, edits_of(path, text))
            self.num_edits[path] += number

    def changed(self) -> list[str]:
        """Paths, of before the moves, of the texts that are not what was read."""
        return [path for path, text in self.texts.items() if text != self._written[path]]

    def line_of(self, path: str, offset: int) -> str:
        """`path:line: the line` for a message."""
        text = self.texts[path]
        end = text.find("\n", offset)
        line = text[text.rfind("\n", 0, offset) + 1 : end if end >= 0 else len(text)]
        return f"{path}:{text.count(chr(10), 0, offset) + 1}: {line.strip()}"

    def write(self, moves: dict[str, str]) -> None:
        """Move and remove files, write the texts that changed, repair the order of imports, stage all of it."""
        for old in self.removed:
            (self.root / old).unlink()
        for old in moves:
            (self.root / old).rename(self.root / f"{old}.moving")
        for old, new in moves.items():
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            (self.root / f"{old}.moving").rename(self.root / new)
        changed = (path for path in self.changed() if path not in self.removed)
        texts = {moves.get(path, path): self.texts[path] for path in changed} | self.added
        for name, text in texts.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(text.encode())
        touched = {*moves, *moves.values(), *texts, *self.removed}
        left = {(self.root / old).parent for old in (*moves, *self.removed)}
        _remove_empty_folders(self.root, left)
        self._format(sorted(p for p in touched if p.endswith(".py") and (self.root / p).exists()))
        git(self.root, "add", "-A", "--", *sorted(touched))

    def _format(self, paths: list[str]) -> None:
        ruff = (sys.executable, "-m", "ruff")
        for arguments in (("check", "-q", "--select", "I", "--fix"), ("format", "-q")):
            if paths:
                subprocess.run([*ruff, *arguments, *paths], cwd=self.root, check=True, timeout=300)


def git(root: Path, *arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def _remove_empty_folders(root: Path, folders: Iterable[Path]) -> None:
    """Folders without a file but compiled modules, which Python would take for a part of the namespace."""
    for folder in folders:
        for each in (folder, *folder.parents):
            if each == root or any(
                path.is_file() and path.parent.name != "__pycache__" for path in each.rglob("*")
            ):
                break
            shutil.rmtree(each, ignore_errors=True)
