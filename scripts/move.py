"""Moves files and renames definitions in all of the repository: `python -m scripts.move MAP.tsv [--check]`.

MAP.tsv has a row `old path<TAB>new path` for each file; folders and packages come by themselves. Imports, module
names and paths in strings, documents and other files, and links follow. `--rename module:Old=New` (scripts.renaming)
comes before the moves. What may name a moved file in a way that is not followed is listed for a person to look at.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scripts.mentions import Mentions, import_edits
from scripts.renaming import Rename, rename
from scripts.repository import PRODUCT, RefusedError, Repository, git, module_of

ROOT: Final = Path(__file__).resolve().parent.parent


def read_map(text: str) -> list[tuple[str, str]]:
    """The rows, without a header and without files that are yet to be written."""
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    if bad := [row for row in rows if len(row) != 2]:
        raise RefusedError(f"a row is `old path<TAB>new path`, not {bad[0]}")
    return [(old, new) for old, new in rows if old not in ("today", "(new)")]


def check_map(repository: Repository, rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The files that change their path; raises `RefusedError` with every row that cannot be done."""
    problems = [f"{old}: no such file" for old, _ in rows if old not in repository.files]
    problems += [
        f"{old} → {new}: a part of a file is moved by hand"
        for old, new in rows
        if "*" in old + new or "," in new
    ]
    for old, number in Counter(old for old, _ in rows).items():
        if number > 1:
            problems.append(f"{old}: {number} rows")
    sources: dict[str, list[str]] = {path: [path] for path in repository.files - dict(rows).keys()}
    for old, new in rows:
        sources.setdefault(new, []).append(old)
    problems += [
        f"{new} ← {', '.join(sorted(olds))}: merge by hand first"
        for new, olds in sources.items()
        if len(olds) > 1
    ]
    problems += [
        f"{new}: is there, and git does not track it"
        for _, new in rows
        if new not in repository.files and (repository.root / new).exists()
    ]
    problems += _clashes(set(sources))
    if problems:
        raise RefusedError("\n".join(problems))
    return {old: new for old, new in rows if old != new}


def _clashes(paths: set[str]) -> list[str]:
    """Modules that would hide each other: two files of one name, a module beside a package."""
    places: dict[str, list[str]] = {}
    for path in sorted(paths):
        if module := module_of(path):
            places.setdefault(module, []).append(path)
    return [
        f"{module} would be {' and '.join(found)}"
        for module, found in places.items()
        if len(found) > 1
    ]


def move(repository: Repository, moves: dict[str, str]) -> list[str]:
    """Change the texts for the moves, and add the `__init__.py` of new packages; return what to look at."""
    if not moves:
        return []
    notes = [
        f"{repository.line_of(old, repository.texts[old].index('__file__'))}: depends on its place"
        for old in moves
        if "__file__" in repository.texts.get(old, "") and old.endswith(".py")
    ]
    notes += [*_add_packages(repository, moves), *_left_behind(repository, moves)]
    for root in sorted(_roots(moves.values()) - _roots(repository.files)):
        notes.append(
            f"{root}: is a new package root, see CONTRIBUTING.md for where they are listed"
        )
    mentions = Mentions(repository, moves)
    for path, text in repository.texts.items():
        notes += sorted({repository.line_of(path, at) for at in mentions.doubtful(path, text)})
    repository.edit(
        lambda path, text: [
            *(import_edits(text, mentions) if path.endswith(".py") else ()),
            *mentions.edits(path, text),
        ]
    )
    return notes


def _add_packages(repository: Repository, moves: dict[str, str]) -> list[str]:
    """Each folder below `pagemesh` is a package where the file came from one."""
    there = (repository.files - moves.keys()) | set(moves.values())
    notes = []
    for old, new in sorted(moves.items()):
        folder, _, _ = old.rpartition("/")
        model = f"{folder}/__init__.py"
        parts = new.split("/")[:-1]
        if not new.endswith(".py") or PRODUCT not in parts or model not in repository.files:
            continue
        for end in range(parts.index(PRODUCT) + 2, len(parts) + 1):
            path = "/".join([*parts[:end], "__init__.py"])
            if path not in there:
                there.add(path)
                docstring = ast.get_docstring(ast.parse(repository.texts[model])) or ""
                repository.added[path] = f'"""{docstring.partition(chr(10))[0]}"""\n'
                notes.append(f"{path}: is new, with the docstring of {model}: describe it")
    return notes


def _roots(paths: Iterable[str]) -> set[str]:
    """Folders that hold a portion of the namespace."""
    inner = f"/{PRODUCT}/"
    return {path.partition(inner)[0] for path in paths if path.endswith(".py") and inner in path}


def _left_behind(repository: Repository, moves: dict[str, str]) -> list[str]:
    """Packages of which only `__init__.py` stays, and data files that stay when it goes."""
    notes = []
    left = repository.files - moves.keys()
    for folder in sorted({old.rpartition("/")[0] for old in moves if old.endswith(".py")}):
        below = [path for path in left if path.startswith(f"{folder}/")]
        if below == [f"{folder}/__init__.py"]:
            notes.append(f"{below[0]}: all that is left of its package")
        elif f"{folder}/__init__.py" in moves and below:
            notes.append(f"{folder}: loses its __init__.py, {below[0]} stays")
    return notes


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do it, or with --check say what would be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("map", nargs="?", type=Path, help="rows `old path<TAB>new path`")
    parser.add_argument(
        "--rename",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODULE:OLD=NEW",
        help="a class, function, constant",
    )
    parser.add_argument("--check", action="store_true", help="only say what would change")
    parser.add_argument("--dirty", action="store_true", help="with changes that are not committed")
    options = parser.parse_args(arguments)
    if not options.map and not options.rename:
        parser.error("a map, --rename or both")
    try:
        changes = git(root, "status", "--porcelain", "--untracked-files=no")
        if changes and not (options.dirty or options.check):
            raise RefusedError(
                "there are changes that are not committed; --dirty does it all the same"
            )
        repository = Repository.load(root)
        rows = read_map(options.map.read_text(encoding="utf-8")) if options.map else []
        moves = check_map(repository, rows)
        notes = rename(repository, [Rename.parse(text) for text in options.rename])
        notes += move(repository, moves)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 1
    changed = repository.changed()
    if options.check:
        for path in sorted({*moves, *changed}):
            target = f" → {moves[path]}" if path in moves else ""
            print(f"{path}{target}: {repository.num_edits[path]} places")
    else:
        repository.write(moves)
    if notes:
        print("Look at:", *notes, sep="\n  ")
    files = len({*moves, *changed})
    print(f"{files} changes: {len(moves)} files move, texts of {len(changed)} change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
