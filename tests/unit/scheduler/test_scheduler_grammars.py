"""Requests with structured output: waiting for the grammar, then tokens under a constraint."""

from __future__ import annotations

from pagemesh.core.request import FinishReason
from pagemesh.errors import InternalError, InvalidRequestError
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.fakes.engine import expected_tokens
from tests.fakes.grammars import FakeConstraint
from tests.unit.scheduler.builders import Stepper, make_info, make_request

OUTPUTS = StructuredOutputs.of(regex="a+")


def test_nobody_waits_behind_a_request_that_waits_for_its_grammar() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    slow = make_request("slow", 8, structured=OUTPUTS, priority=-1)
    stepper.submit(slow, make_request("other", 8, max_tokens=2))
    assert stepper.step() == [("other", 0, 8)]
    load = stepper.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_pending_prefill_tokens) == (1, 1, 8)
    assert load.num_free_blocks == 13
    stepper.run()
    assert stepper.reason("other") == "length"
    assert stepper.tokens.get("slow") is None
    stepper.scheduler.constraints.open(slow, FakeConstraint())
    stepper.run()
    assert stepper.reason("slow") == "length"


def test_a_request_keeps_its_place_in_the_queue() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    first = make_request("first", 4, max_tokens=1, structured=OUTPUTS)
    stepper.submit(make_request("running", 4, max_tokens=2), first, make_request("last", 4))
    stepper.step()
    stepper.scheduler.constraints.open(first, FakeConstraint())
    assert [stepper.step()[0][0] for _ in range(3)] == ["running", "first", "last"]


def test_a_constraint_is_told_of_every_token_once() -> None:
    # Blocks for one and a half requests: one of them is preempted again and again.
    stepper = Stepper(make_info(num_blocks=6, max_num_seqs=2))
    constraints = {}
    for name in ("a", "b"):
        request = make_request(name, 7, max_tokens=12, structured=OUTPUTS)
        stepper.submit(request)
        constraints[name] = FakeConstraint()
        stepper.scheduler.constraints.open(request, constraints[name])
        stepper.step()
    stepper.run()
    for name, constraint in constraints.items():
        assert len(stepper.tokens[name]) == 12
        assert constraint.accepted == stepper.tokens[name]


def test_the_batch_carries_the_constraint_where_a_token_is_sampled() -> None:
    stepper = Stepper(max_num_batched_tokens=8)
    request = make_request("a", 12, structured=OUTPUTS)
    stepper.submit(request)
    constraint = FakeConstraint()
    stepper.scheduler.constraints.open(request, constraint)
    for expected in (None, constraint, constraint):
        batch = stepper.scheduler.schedule()
        assert [sequence.constraint for sequence in batch.sequences] == [expected]
        stepper.scheduler.update(batch, stepper.runner.execute(batch))


def test_a_request_whose_grammar_cannot_be_compiled_ends_before_it_takes_blocks() -> None:
    stepper = Stepper()
    request = make_request("a", 8, structured=OUTPUTS)
    stepper.submit(request)
    error = InvalidRequestError("it is bad", param="structured_outputs")
    stepper.scheduler.constraints.open(request, error)
    stepper.collect()
    assert stepper.ends["a"][0].error is error
    assert stepper.step() == []


def test_cancelling_ends_a_request_that_waits_for_its_grammar() -> None:
    stepper = Stepper()
    requests = [
        make_request("a", 8, structured=OUTPUTS),
        make_request("export", 8, structured=OUTPUTS, export=True),
        make_request("import", 8, structured=OUTPUTS, await_kv=True),
    ]
    stepper.submit(*requests)
    stepper.requests.cancel("a")
    stepper.requests.release("export")
    stepper.requests.cancel("import")
    stepper.collect()
    assert {name: stepper.reason(name) for name in stepper.ends} == {
        "a": "cancelled",
        "export": "cancelled",
        "import": "cancelled",
    }
    for request in requests:
        stepper.scheduler.constraints.open(request, FakeConstraint())
    assert stepper.step() == []
    assert stepper.grants == {}
    # Their names are free again.
    stepper.submit(make_request("a", 8), make_request("export", 8), make_request("import", 8))
    stepper.run()
    assert [len(stepper.ends[name]) for name in ("a", "export", "import")] == [2, 2, 2]


def test_a_constraint_is_not_given_to_another_request_of_the_same_name() -> None:
    stepper = Stepper()
    old = make_request("a", 8, structured=OUTPUTS)
    stepper.submit(old)
    stepper.requests.cancel("a")
    new = make_request("a", 8, structured=OUTPUTS)
    stepper.submit(new)
    stepper.scheduler.constraints.open(old, FakeConstraint())
    assert stepper.step() == []
    constraint = FakeConstraint()
    stepper.scheduler.constraints.open(new, constraint)
    stepper.run()
    assert len(constraint.accepted) == 4


def test_everything_ends_requests_that_wait_for_their_grammars() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 8, structured=OUTPUTS))
    error = InternalError("the end")
    for request in stepper.requests.live():
        stepper.requests.finish(request, FinishReason.ERROR, error)
    stepper.collect()
    assert stepper.ends["a"][0].error is error


def test_the_end_of_the_output_ends_the_request_whatever_else_was_asked_for() -> None:
    prompt = range(100, 108)
    expected = expected_tokens(prompt, 3)
    stepper = Stepper(eos_token_ids=(expected[2],))
    request = make_request(
        "a", prompt, max_tokens=9, min_tokens=5, ignore_eos=True, structured=OUTPUTS
    )
    stepper.submit(request)
    stepper.scheduler.constraints.open(request, FakeConstraint(end=expected[2]))
    stepper.run()
    assert (tuple(stepper.tokens["a"]), stepper.reason("a")) == (expected, "stop")


def test_ends_of_sequence_are_avoided_where_they_are_ignored() -> None:
    stepper = Stepper(eos_token_ids=(2, 3))
    cases = {
        "free": ({"ignore_eos": True}, ()),
        "ignored": ({"ignore_eos": True, "structured": OUTPUTS}, (2, 3)),
        "early": ({"min_tokens": 2, "structured": OUTPUTS}, (2, 3)),
        "late": ({"structured": OUTPUTS}, ()),
    }
    for name, (options, _) in cases.items():
        request = make_request(name, 4, **options)  # type: ignore[arg-type]
        stepper.submit(request)
        stepper.scheduler.constraints.open(request, FakeConstraint())
    batch = stepper.scheduler.schedule()
    assert {s.request_id: s.suppressed_token_ids for s in batch.sequences} == {
        name: suppressed for name, (_, suppressed) in cases.items()
    }


def test_a_resumed_request_goes_on_where_its_constraint_is() -> None:
    prompt = range(100, 108)
    expected = expected_tokens(prompt, 4)
    stepper = Stepper()
    request = make_request("a", prompt, resume=expected[:2], structured=OUTPUTS)
    over = make_request("over", prompt, resume=(*expected[:2], 5), structured=OUTPUTS)
    stepper.submit(request, over)
    constraint = FakeConstraint(accepted=list(expected[:2]))
    stepper.scheduler.constraints.open(request, constraint)
    stepper.scheduler.constraints.open(over, FakeConstraint(end=5, accepted=[*expected[:2], 5]))
    stepper.run()
    assert constraint.accepted == list(expected)
    assert (stepper.tokens["over"], stepper.reason("over")) == ([], "stop")


def test_an_import_takes_its_first_token_under_the_constraint() -> None:
    stepper = Stepper()
    request = make_request("a", 8, await_kv=True, structured=OUTPUTS)
    stepper.submit(request)
    constraint = FakeConstraint()
    stepper.scheduler.constraints.open(request, constraint)
    stepper.step()
    stepper.requests.first_token("a", 77)
    stepper.collect()
    assert constraint.accepted == stepper.tokens["a"] == [77]
    stepper.requests.finish_import("a", 0)
    stepper.run()
    assert (stepper.reason("a"), stepper.num_free_blocks) == ("length", 16)


def test_a_first_token_that_the_constraint_forbids_is_sampled_here() -> None:
    prompt = range(100, 108)
    stepper = Stepper()
    request = make_request("a", prompt, await_kv=True, structured=OUTPUTS)
    stepper.submit(request)
    constraint = FakeConstraint(refused=77)
    stepper.scheduler.constraints.open(request, constraint)
    stepper.step()
    stepper.requests.first_token("a", 77)
    stepper.requests.finish_import("a", 0)
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected_tokens(prompt, 4)
    assert constraint.accepted == stepper.tokens["a"]
    assert stepper.num_free_blocks == 16


def test_a_token_that_is_sampled_here_and_refused_ends_the_request() -> None:
    prompt = range(100, 108)
    (token_id,) = expected_tokens(prompt, 1)
    stepper = Stepper()
    request = make_request("a", prompt, structured=OUTPUTS)
    stepper.submit(request)
    stepper.scheduler.constraints.open(request, FakeConstraint(refused=token_id))
    stepper.run()
    error = stepper.ends["a"][0].error
    assert isinstance(error, InternalError)
    assert error.message == f"token {token_id} is none that the structured output allows"
    assert stepper.num_free_blocks == 16


def test_an_output_that_takes_too_much_to_follow_ends_the_request_as_its_own_fault() -> None:
    class TooComplex(FakeConstraint):
        def accept(self, token_id: int) -> bool:
            raise InvalidRequestError("too many ways")

    stepper = Stepper()
    request = make_request("a", range(100, 108), structured=OUTPUTS)
    stepper.submit(request)
    stepper.scheduler.constraints.open(request, TooComplex())
    stepper.run()
    error = stepper.ends["a"][0].error
    assert isinstance(error, InvalidRequestError)
    assert error.message == "too many ways"
    assert stepper.num_free_blocks == 16
