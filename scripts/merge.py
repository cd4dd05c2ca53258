"""Merges modules, with all that mentions them: `python -m scripts.merge MERGES.toml [--check]`.

MERGES.toml has a table for each new file:

    [[merge]]
    into = "src/pagemesh/rpc/tasks.py"
    files = ["src/pagemesh/rpc/tasks.py", "src/pagemesh/rpc/tasks.py"]
    docstring = "Tasks of an event loop."

`docstring` may be left out where `into` is one of the files. Imports, module names and paths follow as in
scripts.move, which lists what a person has to look at; a merge that cannot be done changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.merging import MergeError, merge
from scripts.move import ROOT, move
from scripts.repository import RefusedError, Repository, git, module_of


@dataclass(frozen=True)
class Merge:
    """One new file."""

    into: str
    files: Sequence[str]
    docstring: str = ""


def read_merges(text: str) -> list[Merge]:
    """The tables of a file."""
    return [Merge(**table) for table in tomllib.loads(text)["merge"]]


def check(repository: Repository, merges: Sequence[Merge]) -> None:
    """Raise RefusedError with everything that is wrong."""
    problems = []
    named: set[str] = set()
    for each in merges:
        problems += [f"{path}: no such file" for path in each.files if path not in repository.files]
        problems += [f"{path}: named twice" for path in {each.into, *each.files} if path in named]
        named |= {each.into, *each.files}
        if each.into not in each.files and each.into in repository.files:
            problems.append(f"{each.into}: is there, and not among the merged files")
        if each.into not in each.files and not each.docstring:
            problems.append(f"{each.into}: a new file needs a docstring")
    if problems:
        raise RefusedError("\n".join(problems))


def merge_files(repository: Repository, merges: Sequence[Merge]) -> list[str]:
    """Change all texts, and note in the repository which files go; return what to look at."""
    said = {each.into: each.docstring or _docstring(repository, each.into) for each in merges}
    moves = {path: each.into for each in merges for path in each.files if path != each.into}
    notes = move(repository, moves)
    problems = []
    for each in merges:
        texts = {path: repository.texts[path] for path in each.files}
        try:
            text = merge(texts, module_of(each.into) or "", said[each.into])
        except MergeError as error:
            problems.append(f"{each.into}: {error}")
            continue
        repository.removed |= set(each.files) - {each.into}
        if each.into in repository.texts:
            repository.texts[each.into] = text
        else:
            repository.added[each.into] = text
    if problems:
        raise RefusedError("\n".join(problems))
    return notes


def _docstring(repository: Repository, path: str) -> str:
    return ast.get_docstring(ast.parse(repository.texts[path]), clean=False) or ""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do it, or with --check say whether it could be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("merges", type=Path, help="a TOML file")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--dirty", action="store_true", help="with changes that are not committed")
    options = parser.parse_args(arguments)
    try:
        changes = git(root, "status", "--porcelain", "--untracked-files=no")
        if changes and not (options.dirty or options.check):
            raise RefusedError("there are changes that are not committed; --dirty ignores them")
        repository = Repository.load(root)
        merges = read_merges(options.merges.read_text(encoding="utf-8"))
        check(repository, merges)
        notes = merge_files(repository, merges)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.check:
        repository.write({})
    if notes:
        print("Look at:", *notes, sep="\n  ")
    print(f"{sum(len(each.files) for each in merges)} files become {len(merges)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
