"""The files of the repository as the hygiene tests see them: ours, by path, parsed once."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

from tools import symbols

ROOT = Path(__file__).resolve().parents[2]

# Folders that hold nothing of ours.
FOREIGN = {
    ".git",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv",
    "__pycache__",
    "build",
    "dist",
    "node_modules",
}


def package_roots() -> list[Path]:
    """Folders that hold a portion of the `pagemesh` namespace, relative to the repository."""
    return [root.relative_to(ROOT) for root in symbols.package_roots(ROOT)]


@cache
def files(*suffixes: str) -> tuple[Path, ...]:
    """All files of the repository that end so, generated ones included."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - FOREIGN)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(suffixes)]
    return tuple(found)


def is_generated(path: Path) -> bool:
    """Whether protoc wrote the file."""
    return "_pb2" in path.name


@cache
def sources() -> tuple[Path, ...]:
    """All Python files written by people."""
    return tuple(path for path in files(".py") if not is_generated(path))


@cache
def syntax(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    """The file as messages name it: relative to the repository."""
    return path.relative_to(ROOT).as_posix()
