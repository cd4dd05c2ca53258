"""Grammars are compiled off the engine thread, which goes on with others or sleeps meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pagemesh.core.request import FinishReason
from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.fakes.grammars import GatedBackend
from tests.fakes.inbox import DEADLINE, Inbox
from tests.unit.scheduler.builders import make_request

GOOD = StructuredOutputs.of(regex="good")
BAD = StructuredOutputs.of(regex="bad")
LAST = StructuredOutputs.of(regex="last")


class Fixture:
    """An engine whose grammars are in the test's hand."""

    def __init__(self) -> None:
        self.backend = GatedBackend()
        self.engine = FakeEngine(grammars=GrammarCompiler(lambda: self.backend))
        self.inbox = Inbox()
        self.engine.start(self.inbox)

    def wait_until_compiling(self) -> None:
        assert self.backend.entered.acquire(timeout=DEADLINE)


@pytest.fixture
def gated() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.backend.gate.set()
    fixture.engine.stop()
    assert fixture.engine.num_free_blocks == fixture.engine.info.num_blocks
    fixture.engine.scheduler.requests.check_integrity()


def test_others_run_while_a_grammar_is_compiled(gated: Fixture) -> None:
    slow = make_request("slow", 8, structured=GOOD)
    gated.engine.submit(slow)
    gated.wait_until_compiling()
    gated.engine.submit(make_request("other", 8))
    gated.inbox.wait_for_end("other")
    assert "slow" not in gated.inbox.tokens
    # Nothing is left to compute: the end of the compilation must wake the engine.
    gated.backend.gate.set()
    gated.inbox.wait_for_end("slow")
    assert tuple(gated.inbox.tokens["slow"]) == expected_tokens(slow.prompt_token_ids, 4)
    assert gated.backend.grammar.started[0].accepted == gated.inbox.tokens["slow"]


def test_a_kept_grammar_is_there_at_once_and_each_request_has_its_own_constraint(
    gated: Fixture,
) -> None:
    gated.backend.gate.set()
    for name in ("a", "b"):
        gated.engine.submit(make_request(name, 8, structured=GOOD))
        gated.inbox.wait_for_end(name)
    accepted = [constraint.accepted for constraint in gated.backend.grammar.started]
    assert accepted == [gated.inbox.tokens["a"], gated.inbox.tokens["b"]]
    grammars = gated.engine.load().grammars
    assert (grammars.num_requests, grammars.num_kept) == (2, 1)
    assert 0 < grammars.wait_seconds < DEADLINE


def test_resumed_tokens_are_replayed(gated: Fixture) -> None:
    gated.backend.gate.set()
    gated.engine.submit(make_request("a", 8, resume=(11, 12), structured=GOOD))
    gated.inbox.wait_for_end("a")
    accepted = gated.backend.grammar.started[0].accepted
    assert accepted == [11, 12, *gated.inbox.tokens["a"]]
    assert len(accepted) == 4


def test_a_bad_grammar_ends_its_request_alone(gated: Fixture) -> None:
    gated.backend.gate.set()
    names = ("a", "bad", "b")
    for name in names:
        gated.engine.submit(make_request(name, 8, structured=BAD if name == "bad" else GOOD))
    gated.inbox.wait_for_end(*names)
    error = gated.inbox.ends["bad"].error
    assert isinstance(error, InvalidRequestError)
    assert (error.message, error.param) == ("it is bad", "structured_outputs")
    assert gated.inbox.tokens["bad"] == []
    assert [gated.inbox.ends[name].finish_reason for name in ("a", "b")] == [
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]


def test_a_request_is_cancelled_while_its_grammar_is_compiled(gated: Fixture) -> None:
    gated.engine.submit(make_request("a", 8, structured=GOOD))
    gated.engine.submit(make_request("export", 8, structured=GOOD, export=True))
    gated.wait_until_compiling()
    gated.engine.cancel("a")
    gated.engine.release("export")
    gated.inbox.wait_for_end("a", "export")
    assert gated.inbox.ends["a"].finish_reason is FinishReason.CANCELLED
    gated.backend.gate.set()
    gated.engine.submit(make_request("a again", 8, structured=GOOD))
    gated.inbox.wait_for_end("a again")
    assert gated.inbox.tokens["a"] == gated.inbox.tokens["export"] == []


def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled(gated: Fixture) -> None:
    gated.engine.submit(make_request("first", 8, structured=GOOD))
    gated.wait_until_compiling()
    gated.engine.submit(make_request("cancelled", 8, structured=BAD))
    gated.engine.submit(make_request("export", 8, structured=BAD, export=True))
    gated.engine.submit(make_request("last", 8, structured=LAST))
    gated.engine.cancel("cancelled")
    gated.engine.release("export")
    # Only an export ends by a release.
    gated.engine.release("last")
    gated.inbox.wait_for_end("cancelled", "export")
    gated.backend.gate.set()
    gated.inbox.wait_for_end("first", "last")
    assert gated.backend.compiled == [GOOD, LAST]
    assert gated.inbox.ends["last"].finish_reason is FinishReason.LENGTH


def test_the_engine_stops_while_a_grammar_is_compiled(gated: Fixture) -> None:
    gated.engine.submit(make_request("a", 8, structured=GOOD))
    gated.engine.submit(make_request("b", 8, structured=BAD))
    gated.wait_until_compiling()
    gated.engine.stop()
    assert gated.inbox.ends["a"].finish_reason is FinishReason.CANCELLED
    assert gated.inbox.ends["b"].finish_reason is FinishReason.CANCELLED


def test_an_engine_without_tokenizer_refuses_structured_output() -> None:
    engine = FakeEngine()
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 8, structured=GOOD))
    engine.submit(make_request("b", 8))
    inbox.wait_for_end("a", "b")
    engine.stop()
    error = inbox.ends["a"].error
    assert isinstance(error, UnsupportedError)
    assert error.param == "structured_outputs"
    assert inbox.ends["b"].finish_reason is FinishReason.LENGTH
