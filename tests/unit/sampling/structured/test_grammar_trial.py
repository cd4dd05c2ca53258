"""Grammars that end a process, or do not end: they end the trial's, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from pagemesh.errors import InternalError, InvalidRequestError, UnavailableError
from pagemesh.sampling.structured import trial
from pagemesh.sampling.structured.outputs import StructuredKind, StructuredOutputs
from pagemesh.sampling.structured.trial import GrammarTrial

DEADLINE_S = 60.0

GOOD = StructuredOutputs.of(json='{"type": "object"}')
DEADLY = StructuredOutputs.of(json='{"type": "integer", "const": -1e19}')
"""The library negates the least integer of 64 bits, which is itself, and does so until its stack is full."""

SLOW = StructuredOutputs(StructuredKind.JSON, '{"type": "integer", "multipleOf": 999983}')
"""Seconds; what clients describe so is refused."""


@pytest.fixture
def tried() -> Iterator[GrammarTrial]:
    """Its process is gone behind the test."""
    before = set(children())
    made = GrammarTrial()
    yield made
    made.close()
    assert set(children()) <= before


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if trial.PROGRAM in each.cmdline()]


def process_of(tried: GrammarTrial) -> psutil.Process:
    """The latest one."""
    assert tried._process is not None
    return psutil.Process(tried._process._popen.pid)


def test_a_grammar_that_ends_its_process_is_refused_and_others_go_on(tried: GrammarTrial) -> None:
    for _ in range(2):
        tried.check(GOOD)
        process = process_of(tried)
        with pytest.raises(InvalidRequestError) as caught:
            tried.check(DEADLY)
        assert caught.value.param == "structured_outputs"
        assert caught.value.message == (
            "structured_outputs.json cannot be compiled: the library that compiles it fails over it"
        )
        assert not process.is_running()


def test_what_is_wrong_with_a_grammar_is_for_the_engine_to_say(tried: GrammarTrial) -> None:
    tried.check(StructuredOutputs.of(regex="("))
    tried.check(StructuredOutputs.of(json='{"type": "unknown"}'))


def test_one_process_tries_all_grammars(tried: GrammarTrial) -> None:
    tried.check(GOOD)
    process = process_of(tried)
    tried.check(StructuredOutputs.of(choice=["ä", "\n"]))
    assert process_of(tried) == process


def test_a_grammar_that_takes_too_long_is_refused_and_others_go_on() -> None:
    tried = GrammarTrial(timeout=0.2)
    try:
        with pytest.raises(InvalidRequestError, match=r"it takes longer than 0.2 s"):
            tried.check(SLOW)
        tried._timeout = DEADLINE_S
        tried.check(GOOD)
    finally:
        tried.close()


def test_a_trial_that_is_closed_ends_at_once(tried: GrammarTrial) -> None:
    tried.check(GOOD)
    process, failures = process_of(tried), list[Exception]()

    def check() -> None:
        try:
            tried.check(SLOW)
        except UnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    until_busy(process)
    began_at = time.monotonic()
    tried.close()
    assert time.monotonic() - began_at < 2
    thread.join(DEADLINE_S)
    assert failures
    assert not process.is_running()
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        tried.check(GOOD)


def until_busy(process: psutil.Process) -> None:
    """Until it computes."""
    before, until = process.cpu_times().user, time.monotonic() + DEADLINE_S
    while process.cpu_times().user < before + 0.1:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_does_not_start_is_an_internal_error(
    tried: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "PROGRAM", "pagemesh.nothing")
    with pytest.raises(InternalError, match="the process that tries grammars does not start"):
        tried.check(GOOD)
    monkeypatch.undo()
    tried.check(GOOD)


ORPHAN = """
import time
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.sampling.structured.trial import GrammarTrial
tried = GrammarTrial()
tried.check(StructuredOutputs.of(json="{}"))
print(tried._process._popen.pid, flush=True)
time.sleep(600)
"""


def test_the_process_goes_with_the_engines() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        process = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    process.wait(DEADLINE_S)
