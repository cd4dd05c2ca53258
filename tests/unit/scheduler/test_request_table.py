"""How requests begin and end: refusals, stop rules, resumption, cancellation, failures."""

import re

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.errors import ContextLengthError, InternalError, InvalidRequestError, PagemeshError
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Stepper, make_info, make_request


def refusal(stepper: Stepper, request: EngineRequest) -> PagemeshError:
    stepper.submit(request)
    stepper.collect()
    assert stepper.reason(request.request_id) == "error"
    error = stepper.ends.pop(request.request_id)[0].error
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (make_request("a", ()), InvalidRequestError, "prompt_token_ids is empty"),
        (make_request("a", 4, max_tokens=0), InvalidRequestError, "max_tokens is 0"),
        (make_request("a", (1, 1000)), InvalidRequestError, "contains 1000, .* has 1000 tokens"),
        (make_request("a", (-1, 1)), InvalidRequestError, "prompt_token_ids contains -1"),
        (make_request("a", 4, stop=(5000,)), InvalidRequestError, "stop_token_ids contains 5000"),
        (make_request("a", 4, resume=(5000,)), InvalidRequestError, "resume_token_ids contains"),
        (make_request("a", 20), ContextLengthError, "20 tokens, .* only 20"),
        (make_request("a", 8, max_tokens=10), ContextLengthError, "17 tokens, .* only 16"),
    ],
)
def test_a_request_that_can_never_run_is_refused(
    request_: EngineRequest, kind: type[PagemeshError], message: str
) -> None:
    stepper = Stepper(make_info(num_blocks=4, max_model_len=20))
    error = refusal(stepper, request_)
    assert type(error) is kind
    assert re.search(message, error.message)
    assert stepper.step() == []


def test_the_longest_request_that_fits_runs_to_its_end() -> None:
    stepper = Stepper(make_info(num_blocks=4, max_model_len=20))
    stepper.submit(make_request("a", 8, max_tokens=9))
    stepper.run()
    assert len(stepper.tokens["a"]) == 9
    assert stepper.reason("a") == "length"


def test_a_request_id_in_use_is_refused() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 4))
    assert "'a' is in use" in refusal(stepper, make_request("a", 5)).message
    stepper.run()
    assert stepper.reason("a") == "length"
    stepper.submit(make_request("a", 4))
    stepper.run()
    assert len(stepper.ends["a"]) == 2


def test_output_ends_at_max_model_len() -> None:
    stepper = Stepper(make_info(max_model_len=10))
    stepper.submit(make_request("a", 7, max_tokens=100))
    stepper.run()
    assert len(stepper.tokens["a"]) == 3
    assert stepper.reason("a") == "length"


def test_a_stop_token_ends_the_request_and_is_reported() -> None:
    prompt = range(100, 105)
    expected = expected_tokens(prompt, 3)
    stepper = Stepper()
    stepper.submit(make_request("a", prompt, max_tokens=9, stop=(expected[2],)))
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected
    assert stepper.reason("a") == "stop"


def test_the_models_eos_ends_the_request_unless_ignored() -> None:
    prompt = range(100, 105)
    expected = expected_tokens(prompt, 5)
    stepper = Stepper(eos_token_ids=(expected[1],))
    stepper.submit(make_request("a", prompt, max_tokens=5))
    stepper.submit(make_request("b", prompt, max_tokens=5, ignore_eos=True))
    stepper.run()
    assert (tuple(stepper.tokens["a"]), stepper.reason("a")) == (expected[:2], "stop")
    assert (tuple(stepper.tokens["b"]), stepper.reason("b")) == (expected, "length")


def test_resumed_tokens_are_counted_but_not_reported() -> None:
    prompt = range(100, 107)
    expected = expected_tokens(prompt, 6)
    stepper = Stepper()
    stepper.submit(make_request("a", prompt, max_tokens=6, resume=expected[:4]))
    assert stepper.step() == [("a", 0, 11)]
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected[4:]
    assert stepper.reason("a") == "length"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (make_request("a", 4, max_tokens=2, resume=(11, 12)), "length"),
        (make_request("a", 4, max_tokens=9, resume=(11, 12), stop=(12,)), "stop"),
        (make_request("a", 4, max_tokens=9, resume=(11, 2)), "stop"),
        (make_request("a", 4, max_tokens=99, resume=range(60)), "length"),
    ],
    ids=["max_tokens", "stop token", "eos", "max_model_len"],
)
def test_resumed_tokens_that_satisfy_a_stop_end_the_request_at_once(
    request_: EngineRequest, reason: str
) -> None:
    stepper = Stepper(eos_token_ids=(2,))
    stepper.submit(request_)
    assert stepper.step() == []
    assert stepper.reason("a") == reason
    assert stepper.tokens["a"] == []


def test_a_stop_token_before_min_tokens_does_not_end_the_request() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 4, max_tokens=5, min_tokens=2, resume=(11, 12), stop=(12,)))
    stepper.run()
    assert (len(stepper.tokens["a"]), stepper.reason("a")) == (3, "length")


def test_cancelling_frees_waiting_and_running_requests() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    stepper.submit(make_request("a", 9), make_request("b", 9))
    stepper.step()
    stepper.requests.cancel("b")
    stepper.requests.cancel("a")
    stepper.requests.cancel("unknown")
    assert stepper.step() == []
    assert (stepper.reason("a"), stepper.reason("b")) == ("cancelled", "cancelled")
    assert stepper.num_free_blocks == 16
    stepper.requests.cancel("a")
    stepper.collect()
    assert stepper.reason("a") == "cancelled"


def test_a_token_and_the_end_before_one_delivery_make_one_output() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 4))
    batch = stepper.scheduler.schedule()
    stepper.scheduler.update(batch, stepper.runner.execute(batch))
    stepper.requests.cancel("a")
    stepper.collect()
    assert len(stepper.tokens["a"]) == 1
    assert stepper.reason("a") == "cancelled"


def test_a_failed_batch_ends_its_requests_and_frees_their_blocks() -> None:
    stepper = Stepper(max_num_batched_tokens=8)
    stepper.submit(make_request("a", 8), make_request("b", 8))
    error = InternalError("no luck")
    stepper.scheduler.fail(stepper.scheduler.schedule(), error)
    stepper.collect()
    assert stepper.ends["a"][0].error is error
    assert stepper.num_free_blocks == 16
    stepper.run()
    assert stepper.reason("b") == "length"
