"""Which functions of the product processes execute between two moments: windows for `call_recorder`, and what they had.

`Recording` opens and closes windows in all processes that were started with `Recording.environment`. What the processes
wrote are first lines of code; `Sources` knows of which function. Code of a lambda or a comprehension is its function's.
"""

from __future__ import annotations

import ast
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from scripts.call_recorder import sitecustomize

RECORDER: Final = Path(sitecustomize.__file__).parent
DEADLINE_S: Final = 30.0


class Function(NamedTuple):
    """A `def` of the product, with its decorators."""

    file: str
    first: int
    last: int
    name: str
    """Qualified by its classes and functions."""


Executed = Mapping[str, frozenset[Function]]
"""By name of the process."""


class Process(NamedTuple):
    """A Python process that records."""

    number: int
    parent: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Totals:
    """How much was executed."""

    files: int
    functions: int
    lines: int
    """Of those functions; a function within another one has none of its own."""


def totals(functions: Iterable[Function]) -> Totals:
    """Each file, function and line once."""
    found = set(functions)
    lines = {(each.file, line) for each in found for line in range(each.first, each.last + 1)}
    return Totals(len({each.file for each in found}), len(found), len(lines))


def union(executed: Executed) -> frozenset[Function]:
    """Of all processes."""
    return frozenset[Function]().union(*executed.values())


def executed_in_most(windows: Sequence[Executed], share: float, idle: Executed) -> Executed:
    """What a process executed in such a share of the windows, and not when it was idle."""
    names = {name for window in windows for name in window}
    times = {name: Counter(f for window in windows for f in window.get(name, ())) for name in names}
    return {
        name: frozenset(f for f, number in times[name].items() if number >= share * len(windows))
        - idle.get(name, frozenset())
        for name in sorted(names)
    }


class Sources:
    """The functions of files, by line."""

    def __init__(self, root: Path, paths: Iterable[Path]) -> None:
        self._root = root
        self._paths = {os.fspath(path.resolve()): path for path in paths}
        self._functions: dict[str, list[Function]] = {}

    def function(self, file: str, line: int) -> Function | None:
        """The innermost one around a line; None outside of functions, and in files of others."""
        if file not in self._functions:
            path = self._paths.get(os.path.realpath(file))
            self._functions[file] = [] if path is None else self._read(path)
        around = [each for each in self._functions[file] if each.first <= line <= each.last]
        return max(around, key=lambda each: each.first, default=None)

    def _read(self, path: Path) -> list[Function]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(self._root).as_posix()
        return [Function(file, *place) for place in places(tree)]


def places(parent: ast.AST, prefix: str = "") -> Iterator[tuple[int, int, str]]:
    """First line, last line and name of each function."""
    for node in ast.iter_child_nodes(parent):
        inner = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{node.name}."
            if not isinstance(node, ast.ClassDef):
                first = min(each.lineno for each in (node, *node.decorator_list))
                yield first, node.end_lineno or node.lineno, inner[:-1]
        yield from places(node, inner)


def until(holds: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait; TimeoutError, naming `what`, when that takes too long."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)


class Recording:
    """Windows in the processes that record into a folder."""

    def __init__(self, folder: Path, sources: Sources) -> None:
        self._folder = folder
        self._sources = sources
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that shall record, with those that it starts."""
        paths = [os.fspath(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "PYTHONPATH": os.pathsep.join(paths),
            sitecustomize.VARIABLE: os.fspath(self._folder),
        }
        return {**os.environ, **variables}

    def processes(self) -> list[Process]:
        """Those that live."""
        found = []
        for path in self._folder.glob("*.process"):
            said = json.loads(path.read_text())
            found.append(Process(int(path.stem), said["parent"], tuple(said["command"])))
        return [each for each in sorted(found) if _is_alive(each.number)]

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """What the processes of now execute meanwhile is recorded."""
        processes = self.processes()
        self._set(name)
        try:
            self._wait_for(processes, f"{name}.{{}}.open", "begins to record")
            yield
        finally:
            self._set("")
        self._wait_for(processes, f"{name}.{{}}.calls", "writes what it recorded")

    def executed(self, window: str, process: Process) -> frozenset[Function]:
        """What a process executed in a window that is closed; nothing when it began later."""
        path = self._folder / f"{window}.{process.number}.calls"
        places = json.loads(path.read_text()) if path.exists() else ()
        found = (self._sources.function(*place) for place in places)
        return frozenset(function for function in found if function)

    def _set(self, name: str) -> None:
        part = self._folder / "window.part"
        part.write_text(name)
        part.rename(self._folder / "window")

    def _wait_for(self, processes: Sequence[Process], name: str, what: str) -> None:
        for process in processes:
            path = self._folder / name.format(process.number)
            until(partial(_is_there, path, process), f"{' '.join(process.command)} {what}")


def _is_there(path: Path, process: Process) -> bool:
    """Whether a process has written it, or never will."""
    return path.exists() or not _is_alive(process.number)


def _is_alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
