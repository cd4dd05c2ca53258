"""Requests that import and export at once: what they compute, and who keeps their blocks how long."""

from __future__ import annotations

from itertools import permutations

import pytest

from pagemesh.core.kv import KvGrant, KvProgress
from pagemesh.core.request import FinishReason
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Device, Stepper, make_info, make_request

PROMPT = range(100, 110)
EXPECTED = expected_tokens(PROMPT, 4)


def start(stepper: Stepper) -> KvGrant:
    stepper.submit(make_request("a", PROMPT, await_kv=True, export=True))
    assert stepper.step() == []
    return stepper.grants["a"]


def test_a_request_that_imports_and_exports_computes_what_is_missing_and_exports_all() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    grant = start(stepper)
    export = stepper.exports["a"]
    assert (export.block_ids, export.block_hashes) == (grant.block_ids, grant.block_hashes)
    assert stepper.progress == {}
    stepper.write_prompt(grant, PROMPT, 5)
    stepper.requests.finish_import("a", 5)
    stepper.collect()
    assert stepper.progress["a"] == [KvProgress("a", 5, 1)]
    assert stepper.step() == [("a", 5, 4)]
    stepper.run()
    assert [p.num_tokens for p in stepper.progress["a"]] == [5, 9, 10]
    assert tuple(stepper.tokens["a"]) == EXPECTED[:1]
    stepper.check_kv(export.block_ids, PROMPT)
    assert stepper.num_free_blocks == 13
    stepper.requests.finish_import("a", 5)
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")
    assert stepper.num_free_blocks == 16


def test_of_such_a_request_what_is_held_can_be_read_before_the_import_ends() -> None:
    stepper = Stepper()
    stepper.submit(make_request("warm", range(100, 105), max_tokens=1))
    stepper.run()
    start(stepper)
    assert stepper.progress["a"] == [KvProgress("a", 4, 1)]
    stepper.requests.finish_import("a", 4)
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED[:1]


def test_such_a_request_samples_its_token_itself() -> None:
    stepper = Stepper()
    grant = start(stepper)
    stepper.requests.first_token("a", EXPECTED[0])
    stepper.collect()
    assert stepper.tokens == {}
    stepper.write_prompt(grant, PROMPT, 10)
    stepper.requests.finish_import("a", 10)
    assert stepper.step() == [("a", 9, 1)]
    assert tuple(stepper.tokens["a"]) == EXPECTED[:1]


ENDINGS = {
    "cancel": lambda stepper: stepper.requests.cancel("a"),
    "release": lambda stepper: stepper.requests.release("a"),
    "finish_import": lambda stepper: stepper.requests.finish_import("a", 0),
    "compute": lambda stepper: stepper.step(),
}


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted"])
@pytest.mark.parametrize("calls", list(permutations(ENDINGS)), ids="-".join)
def test_two_leases_end_in_any_order_and_free_the_blocks_once(
    calls: tuple[str, ...], granted: bool
) -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    if not granted:
        # It has the only place in the batch.
        stepper.submit(make_request("first", 4, max_tokens=50))
    stepper.submit(make_request("a", PROMPT, await_kv=True, export=True))
    stepper.step()
    open_leases = {"release", "finish_import"} if granted else {"release"}
    for call in calls:
        # Twice each: what has ended ends nothing more.
        for _ in range(2):
            ENDINGS[call](stepper)
            open_leases.discard(call)
            stepper.collect()
            if granted:
                assert stepper.num_free_blocks == (13 if open_leases else 16)
    assert len(stepper.ends["a"]) == 1
    stepper.requests.cancel("first")
    stepper.step()
    assert stepper.num_free_blocks == 16
    stepper.submit(make_request("a", 3, max_tokens=1))
    stepper.step()
    assert [end.finish_reason for end in stepper.ends["a"]][1:] == [FinishReason.LENGTH]


def test_a_step_in_flight_keeps_the_blocks_of_two_ended_leases_until_it_lands() -> None:
    stepper = Stepper(device=Device.LAZY)
    start(stepper)
    stepper.requests.finish_import("a", 0)
    stepper.step()
    stepper.requests.release("a")
    stepper.requests.finish_import("a", 0)
    stepper.collect()
    assert stepper.num_free_blocks == 13
    stepper.settle()
    assert stepper.num_free_blocks == 16


def test_such_a_request_whose_import_counts_wrongly_keeps_its_blocks_until_release() -> None:
    stepper = Stepper()
    start(stepper)
    stepper.requests.finish_import("a", 11)
    stepper.collect()
    assert stepper.reason("a") == "error"
    assert stepper.progress == {}
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")
    assert stepper.num_free_blocks == 16
