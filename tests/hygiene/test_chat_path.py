"""What one chat crosses does not grow, and is counted right: which functions a process executes in a window."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.chat_path import BY_CHANCE, count
from scripts.executed import (
    Executed,
    Function,
    Process,
    Recording,
    Sources,
    Totals,
    executed_in_most,
    places,
    totals,
    union,
    until,
)
from scripts.house import product_files
from tests.hygiene.test_structure import budget, complaints
from tests.hygiene.tree import ROOT

PROGRAM = """\
import os
import queue
import sys
from threading import Thread

asked, answers = queue.Queue(), queue.Queue()


def serve():
    while True:
        name = asked.get()
        answers.put(CALLS[name]())


def one():
    return sum(doubled(number) for number in range(2))


def marked(function):
    return function


@marked
@marked
def doubled(number):
    return 2 * number


class Two:
    def call(self):
        def inner():
            return [number for number in range(3)]

        return len(inner())


def beat():
    return 0


def end():
    os._exit(0)


CALLS = {"one": one, "two": Two().call, "beat": beat, "lambda": lambda: 5, "end": end}

if __name__ == "__main__":
    Thread(target=serve, daemon=True).start()
    for line in sys.stdin:
        asked.put(line.strip())
        print(answers.get(timeout=30), flush=True)
"""


class Program(NamedTuple):
    """A running program that records."""

    recording: Recording
    process: Process
    call: Callable[[str], str]

    def names(self, window: str) -> set[str]:
        return {function.name for function in self.recording.executed(window, self.process)}


@contextmanager
def running_program(folder: Path) -> Iterator[Program]:
    path = folder / "src/pagemesh/program.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROGRAM, encoding="utf-8")
    recording = Recording(folder / "calls", Sources(folder, product_files(folder).values()))
    command = [sys.executable, "-P", str(path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=recording.environment,
    ) as running:
        stdin, stdout = running.stdin, running.stdout
        assert stdin is not None and stdout is not None

        def call(name: str) -> str:
            print(name, file=stdin, flush=True)
            return stdout.readline().strip()

        try:
            until(recording.processes, "the program records")
            (process,) = recording.processes()
            assert process.command == tuple(command)
            assert call("beat") == "0"
            yield Program(recording, process, call)
        finally:
            running.kill()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with running_program(tmp_path) as running:
        yield running


def test_what_threads_execute_in_a_window_is_recorded_and_nothing_else(program: Program) -> None:
    assert program.call("two") == "3"
    with program.recording.window("first"):
        assert program.call("one") == "2"
    assert program.call("beat") == "0"
    with program.recording.window("second"):
        assert program.call("two") == "3"
    with program.recording.window("nothing"):
        pass
    # Since before the window, one thread waits in `serve`.
    assert program.names("first") == {"serve", "one", "doubled"}
    assert program.names("second") == {"serve", "Two.call", "Two.call.inner"}
    # That thread may still be on its way back to where it waits.
    assert program.names("nothing") <= {"serve"}
    (doubled,) = {
        function
        for function in program.recording.executed("first", program.process)
        if function.name == "doubled"
    }
    # With its decorators.
    assert doubled == Function("src/pagemesh/program.py", 23, 26, "doubled")


def test_code_outside_of_functions_is_no_function(program: Program) -> None:
    with program.recording.window("window"):
        assert program.call("lambda") == "5"
    assert program.names("window") == {"serve"}


def test_a_process_that_ends_is_not_waited_for(program: Program) -> None:
    with program.recording.window("window"):
        assert program.call("end") == ""
    assert program.recording.processes() == []
    assert program.names("window") == set()


def function(name: str, first: int, last: int, file: str = "a.py") -> Function:
    return Function(file, first, last, name)


OUTER, INNER = function("outer", 1, 10), function("outer.inner", 3, 5)
OTHER, SAME = function("other", 21, 22), function("same", 3, 5, "b.py")


def test_what_most_windows_have_counts_unless_the_idle_process_has_it_too() -> None:
    def windows(number: int, *functions: Function) -> list[Executed]:
        return [{"p": frozenset(functions), "q": frozenset([OTHER])} for _ in range(number)]

    recorded = [*windows(2, OUTER, OTHER), *windows(1, OUTER, INNER, OTHER), *windows(1, INNER)]
    idle = {"p": frozenset([OTHER]), "r": frozenset([OUTER])}
    assert executed_in_most(recorded, 0.75, idle) == {"p": {OUTER}, "q": {OTHER}}
    assert executed_in_most(recorded, 0.5, idle) == {"p": {OUTER, INNER}, "q": {OTHER}}
    # A process that was not there in each window.
    assert executed_in_most([*recorded, {}], 0.75, idle) == {"p": set(), "q": {OTHER}}


def test_files_functions_and_lines_are_counted_once() -> None:
    executed = {"p": frozenset([OUTER, INNER]), "q": frozenset([OUTER, OTHER, SAME])}
    assert totals(executed["p"]) == Totals(files=1, functions=2, lines=10)
    assert totals(union(executed)) == Totals(files=2, functions=4, lines=15)


def test_what_does_not_count_is_there() -> None:
    paths = product_files(ROOT).values()
    for what in BY_CHANCE:
        stem, _, name = what.partition(":")
        (path,) = (path for path in paths if path.stem == stem)
        names = {name for _, _, name in places(ast.parse(path.read_text(encoding="utf-8")))}
        assert name in names, what


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_chat_crosses_no_more_than_it_did(tmp_path: Path) -> None:
    figures = asdict(totals(union(count(tmp_path))))
    assert complaints(figures, budget("chat_path"), "chat_path") == []
