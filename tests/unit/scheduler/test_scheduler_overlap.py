"""Steps planned while another is in flight: what may be planned, and what waits for its completion."""

from __future__ import annotations

import pytest

from pagemesh.errors import InternalError
from pagemesh.scheduler.batch import UNKNOWN_TOKEN
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Device, FixedWay, Stepper, make_info, make_request

PROMPT = range(100, 105)
TOKENS = expected_tokens(PROMPT, 9)


def test_a_decode_is_planned_before_its_token_is_known_but_not_behind_its_last_one() -> None:
    stepper = Stepper(device=Device.LAZY)
    stepper.submit(make_request("a", PROMPT, max_tokens=3))
    assert stepper.step() == [("a", 0, 5)]
    assert stepper.tokens == {}
    assert stepper.step() == [("a", 5, 1)]
    assert stepper.in_flight is not None
    (sequence,) = stepper.in_flight[0].sequences
    assert (list(sequence.token_ids), sequence.previous_row) == ([UNKNOWN_TOKEN], 0)
    assert tuple(stepper.tokens["a"]) == TOKENS[:1]
    assert stepper.step() == [("a", 6, 1)]
    assert stepper.step() == []
    assert tuple(stepper.tokens["a"]) == TOKENS[:3]
    assert stepper.num_free_blocks == 16


def test_no_step_is_planned_behind_the_context_an_export_or_an_embedding() -> None:
    stepper = Stepper(make_info(max_model_len=7), device=Device.LAZY)
    stepper.submit(make_request("context", PROMPT, max_tokens=50))
    stepper.submit(make_request("export", 5, export=True))
    assert [len(stepper.step()) for _ in range(3)] == [2, 1, 0]
    assert stepper.reason("context") == stepper.reason("export") == "length"
    stepper.requests.release("export")
    assert stepper.num_free_blocks == 16


def test_chunks_follow_each_other_without_waiting() -> None:
    stepper = Stepper(max_num_batched_tokens=4, device=Device.LAZY)
    stepper.submit(make_request("a", 10, max_tokens=2))
    shares = [stepper.step() for _ in range(5)]
    assert shares == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 2)], [("a", 10, 1)], []]
    prompt = make_request("a", 10).prompt_token_ids
    assert tuple(stepper.tokens["a"]) == expected_tokens(prompt, 2)


def test_an_export_tells_only_of_kv_that_is_computed() -> None:
    stepper = Stepper(max_num_batched_tokens=4, device=Device.LAZY)
    stepper.submit(make_request("a", 10, export=True))
    num_tokens = []
    for _ in range(4):
        stepper.step()
        num_tokens.append([progress.num_tokens for progress in stepper.progress.get("a", ())])
    assert num_tokens == [[], [4], [4, 8], [4, 8, 10]]


def test_what_is_computed_behind_a_stop_is_in_no_cache_and_no_output() -> None:
    stepper = Stepper(device=Device.LAZY)
    stepper.submit(make_request("a", PROMPT, max_tokens=9, stop=TOKENS[2:3]))
    for _ in range(4):
        stepper.step()
    assert stepper.reason("a") == "stop"
    # The KV of the eighth token, the stop, fills the second block when this step completes.
    assert stepper.in_flight is not None
    assert stepper.in_flight[0].sequences[0].start == 7
    assert stepper.num_free_blocks == 14
    assert stepper.step() == []
    assert stepper.num_free_blocks == 16
    assert tuple(stepper.tokens["a"]) == TOKENS[:3]
    assert len(stepper.cached) == 1


@pytest.mark.parametrize("leased", [False, True])
def test_blocks_of_a_cancelled_request_are_free_when_its_step_has_landed(leased: bool) -> None:
    stepper = Stepper(max_num_batched_tokens=4, device=Device.LAZY)
    stepper.submit(make_request("a", 10, export=leased))
    stepper.step()
    stepper.requests.cancel("a")
    stepper.requests.release("a")
    stepper.collect()
    assert stepper.reason("a") == "cancelled"
    assert stepper.num_free_blocks == 13
    assert stepper.step() == []
    assert stepper.num_free_blocks == 16
    assert stepper.cached == set()


def test_a_lease_outlasts_the_landing() -> None:
    stepper = Stepper(max_num_batched_tokens=4, device=Device.LAZY)
    stepper.submit(make_request("a", 10, export=True))
    stepper.step()
    stepper.requests.cancel("a")
    stepper.step()
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")
    assert stepper.num_free_blocks == 16


def test_an_id_may_be_used_again_while_a_step_of_its_last_request_is_in_flight() -> None:
    stepper = Stepper(device=Device.LAZY)
    stepper.submit(make_request("a", PROMPT, max_tokens=9))
    stepper.step()
    stepper.step()
    stepper.requests.cancel("a")
    stepper.collect()
    stepper.tokens.clear()
    stepper.ends.clear()
    stepper.submit(make_request("a", 6, max_tokens=3))
    stepper.run()
    again = make_request("a", 6).prompt_token_ids
    assert tuple(stepper.tokens["a"]) == expected_tokens(again, 3)
    assert stepper.reason("a") == "length"
    assert stepper.num_free_blocks == 16


def test_a_failing_step_ends_its_requests_and_leaves_those_of_the_next_one() -> None:
    stepper = Stepper(max_num_batched_tokens=6, device=Device.LAZY)
    stepper.submit(make_request("a", PROMPT, max_tokens=9), make_request("b", 12, max_tokens=2))
    assert stepper.step() == [("a", 0, 5), ("b", 0, 1)]
    stepper.submit(make_request("urgent", 4, max_tokens=1, priority=-1))
    failing = stepper.in_flight
    stepper.in_flight = None
    assert stepper.step() == [("a", 5, 1), ("urgent", 0, 4), ("b", 1, 1)]
    assert failing is not None
    stepper.scheduler.fail(failing[0], InternalError("device lost"))
    assert stepper.num_free_blocks == 16 - 2 - 4 - 1
    # It is computed with whatever the failed one left.
    stepper.runner.execute(failing[0])
    stepper.settle()
    assert stepper.reason("a") == stepper.reason("b") == "error"
    assert stepper.reason("urgent") == "length"
    assert stepper.num_free_blocks == 16


def test_whoever_needs_blocks_of_a_request_in_flight_waits_for_the_landing() -> None:
    stepper = Stepper(
        make_info(num_blocks=4),
        enable_prefix_caching=False,
        preemption=FixedWay(True),
        num_swap_blocks=4,
        device=Device.LAZY,
    )
    stepper.submit(make_request("a", 7, max_tokens=4), make_request("b", 7, max_tokens=4))
    assert stepper.step() == [("a", 0, 7), ("b", 0, 7)]
    assert stepper.step() == [("a", 7, 1), ("b", 7, 1)]
    # Both want a third block: "b" should give its own, which the step in flight writes into.
    assert stepper.step() == []
    assert stepper.scheduler.load().num_preemptions == 0
    assert stepper.step() == [("a", 8, 1)]
    assert stepper.moves.swap_outs == ((2, 0), (3, 1))
    stepper.run()
    for name in "ab":
        prompt = make_request(name, 7).prompt_token_ids
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, 4)


def test_min_tokens_counts_the_token_in_flight() -> None:
    stepper = Stepper(eos_token_ids=(2,), device=Device.LAZY)
    stepper.submit(make_request("a", 4, max_tokens=4, min_tokens=2, stop=(7,)))
    suppressed = []
    for _ in range(4):
        stepper.step()
        assert stepper.in_flight is not None
        suppressed.append(stepper.in_flight[0].sequences[0].suppressed_token_ids)
    assert suppressed == [(7, 2), (7, 2), (), ()]


def test_at_most_one_step_is_planned_behind_another() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 4, max_tokens=9))
    stepper.scheduler.schedule()
    stepper.scheduler.schedule()
    with pytest.raises(AssertionError, match="too many steps are in flight"):
        stepper.scheduler.schedule()
