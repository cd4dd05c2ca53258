"""Compiling off the caller's thread: what is kept, what fails, what is withdrawn."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagemesh.errors import (
    InternalError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedError,
)
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.constraint import Grammar, TokenConstraint
from pagemesh.sampling.structured.outputs import StructuredOutputs

DEADLINE = 10.0


class FakeGrammar:
    def start(self) -> TokenConstraint:
        raise NotImplementedError


class FakeBackend:
    """Compiles what begins with "good" at once, and "slow" when the gate is open."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        self.compiled.append(outputs.text)
        if outputs.text.startswith("slow"):
            self.entered.release()
            assert self.gate.wait(DEADLINE)
        if outputs.text == "bad":
            raise InvalidRequestError("it is bad", param="structured_outputs")
        if outputs.text == "bug":
            raise BaseException("a panic")
        return FakeGrammar()


class NoTrial:
    """For grammars that are none; "deadly" is said to have ended a process."""

    def check(self, outputs: StructuredOutputs) -> None:
        if outputs.text == "deadly":
            raise InvalidRequestError("it ended the process")

    def close(self) -> None:
        pass


def regex(text: str) -> StructuredOutputs:
    return StructuredOutputs.of(regex=text)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    backend.gate.set()


@pytest.fixture
def make(backend: FakeBackend) -> Iterator[Callable[..., GrammarCompiler]]:
    made: list[GrammarCompiler] = []

    def make_compiler(max_grammars: int = 2) -> GrammarCompiler:
        made.append(GrammarCompiler(lambda: backend, trial=NoTrial(), max_grammars=max_grammars))
        return made[-1]

    yield make_compiler
    backend.gate.set()
    for compiler in made:
        compiler.close()


Make = Callable[..., GrammarCompiler]


def test_a_grammar_is_compiled_once_for_all_who_ask(make: Make, backend: FakeBackend) -> None:
    compiler = make()
    first = compiler.compile(regex("slow"))
    second = compiler.compile(regex("slow"))
    assert backend.entered.acquire(timeout=DEADLINE)
    assert not first.done()
    backend.gate.set()
    assert first.result(DEADLINE) is second.result(DEADLINE)
    assert compiler.compile(regex("slow")).done()
    assert backend.compiled == ["slow"]


def test_the_latest_grammars_are_kept(make: Make, backend: FakeBackend) -> None:
    compiler = make(max_grammars=2)
    for text in ("good 1", "good 2", "good 1", "good 3", "good 1", "good 2"):
        compiler.compile(regex(text)).result(DEADLINE)
    assert backend.compiled == ["good 1", "good 2", "good 3", "good 2"]


def test_long_texts_push_others_out(backend: FakeBackend) -> None:
    compiler = GrammarCompiler(lambda: backend, trial=NoTrial(), max_kept_chars=30)
    for text in ("good 1", "good 2", "good, but long enough", "good 2", "good 1"):
        compiler.compile(regex(text)).result(DEADLINE)
    # The second is kept beside the long one, the first is not.
    assert backend.compiled == ["good 1", "good 2", "good, but long enough", "good 1"]
    compiler.close()


def test_options_make_another_grammar(make: Make, backend: FakeBackend) -> None:
    compiler = make()
    for blank in (True, False):
        compiler.compile(StructuredOutputs.of(json="{}", disable_any_whitespace=blank)).result(
            DEADLINE
        )
    assert backend.compiled == ["{}", "{}"]


def test_failures_are_not_kept_and_harm_nobody(make: Make, backend: FakeBackend) -> None:
    compiler = make()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="it is bad"):
            compiler.compile(regex("bad")).result(DEADLINE)
    with pytest.raises(InternalError, match="could not be compiled: BaseException"):
        compiler.compile(regex("bug")).result(DEADLINE)
    assert compiler.compile(regex("good")).result(DEADLINE)
    assert backend.compiled == ["bad", "bad", "bug", "good"]


def test_nothing_is_compiled_that_failed_its_trial(make: Make, backend: FakeBackend) -> None:
    compiler = make()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="it ended the process"):
            compiler.compile(regex("deadly")).result(DEADLINE)
    assert compiler.compile(regex("good")).result(DEADLINE)
    assert backend.compiled == ["good"]


def test_nothing_is_compiled_after_the_end(make: Make, backend: FakeBackend) -> None:
    compiler = make()
    slow = compiler.compile(regex("slow"))
    behind = compiler.compile(regex("good"))
    assert backend.entered.acquire(timeout=DEADLINE)
    closing = threading.Thread(target=compiler.close)
    closing.start()
    while not compiler.compile(regex("late")).done():
        pass
    backend.gate.set()
    closing.join(DEADLINE)
    compiler.close()
    assert slow.result(DEADLINE)
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        behind.result(DEADLINE)
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        compiler.compile(regex("good")).result(DEADLINE)
    assert "good" not in backend.compiled


def test_a_backend_that_cannot_be_loaded_is_tried_again() -> None:
    backends = iter([FakeBackend()])
    failures = iter([UnsupportedError("no tokenizer"), OSError("no disk")])

    def load() -> FakeBackend:
        for failure in failures:
            raise failure
        return next(backends)

    compiler = GrammarCompiler(load, trial=NoTrial())
    with pytest.raises(UnsupportedError, match="no tokenizer"):
        compiler.compile(regex("good")).result(DEADLINE)
    with pytest.raises(InternalError, match="OSError"):
        compiler.compile(regex("good")).result(DEADLINE)
    assert compiler.compile(regex("good")).result(DEADLINE)
    compiler.close()


def test_threads_come_with_the_first_grammar(make: Make) -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    compiler = make()
    assert "grammars" not in threads()
    compiler.compile(regex("good")).result(DEADLINE)
    assert "grammars" in threads()
    compiler.close()
    assert "grammars" not in threads()


LONG_CHAIN = """
import itertools, sys, threading
from pathlib import Path

threading.stack_size(2 * 2**20)

from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.guidance import GuidanceBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs

letters = "abcdefghijklmnopqrstuvwxyz"
names = ["".join(pair) for pair in itertools.product(letters, letters, letters)][:1810]
rules = [f"{name}:{following}" for name, following in itertools.pairwise(names)]
grammar = "\\n".join([f"start:{names[0]}", *rules, f'{names[-1]}:"x"'])
compiler = GrammarCompiler(lambda: GuidanceBackend(Path(sys.argv[1]), 2048, (2, 0)))
constraint = compiler.compile(StructuredOutputs.of(grammar=grammar)).result(60).start()
print(len(grammar), constraint.accept(90))
"""


def test_the_longest_chain_of_rules_does_not_end_the_process(demo_model: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", LONG_CHAIN, str(demo_model)], capture_output=True, text=True
    )
    assert (completed.stdout, completed.returncode) == ("14489 True\n", 0)


def test_the_library_is_loaded_with_the_first_grammar_alone() -> None:
    modules = ", ".join(
        f"pagemesh.{name}"
        for name in ("sampling.params", "sampling.structured.compiler", "engine.engine")
    )
    program = f"import sys, {modules}; print('llguidance' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (completed.stdout, completed.stderr) == ("False\n", "")


def test_what_nobody_waits_for_any_more_is_not_compiled(make: Make, backend: FakeBackend) -> None:
    compiler = make(max_grammars=9)
    running = compiler.compile(regex("slow"))
    assert backend.entered.acquire(timeout=DEADLINE)
    given_up = [compiler.compile(regex("good")) for _ in range(2)]
    wanted = [compiler.compile(regex("good too")) for _ in range(2)]
    compiler.withdraw(regex("slow"), running)
    for future in given_up:
        compiler.withdraw(regex("good"), future)
    compiler.withdraw(regex("good too"), wanted[0])
    assert given_up[0].cancelled()
    assert not wanted[1].cancelled()
    again = compiler.compile(regex("good after all"))
    backend.gate.set()
    assert again.result(DEADLINE) is not None
    assert wanted[1].done()
    # What had begun was finished, and is kept.
    assert compiler.compile(regex("slow")).done()
    assert backend.compiled == ["slow", "good too", "good after all"]
    assert compiler.compile(regex("good")).result(DEADLINE) is not None


def test_withdrawing_from_what_is_compiled_changes_nothing(
    make: Make, backend: FakeBackend
) -> None:
    compiler = make()
    future = compiler.compile(regex("good"))
    assert future.result(DEADLINE) is not None
    compiler.withdraw(regex("good"), future)
    assert compiler.compile(regex("good")) is future
    assert backend.compiled == ["good"]
