"""Who keeps blocks besides running requests: exports, imports, pins; and the snapshot of the cache."""

import pytest

from pagemesh.core.kv import KvGrant, KvProgress
from pagemesh.core.request import EngineRequest
from pagemesh.errors import InternalError, InvalidRequestError
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Stepper, make_info, make_request


def test_an_export_reports_what_can_be_read_and_keeps_its_blocks_until_release() -> None:
    stepper = Stepper(max_num_batched_tokens=6)
    stepper.submit(make_request("a", 10, max_tokens=50, export=True))
    stepper.run()
    export = stepper.exports["a"]
    assert (export.block_ids, len(export.block_hashes)) == ((0, 1, 2), 2)
    assert stepper.progress["a"] == [KvProgress("a", 6, 1), KvProgress("a", 10, 1)]
    assert len(stepper.tokens["a"]) == 1
    assert stepper.reason("a") == "length"
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")
    stepper.requests.release("a")
    stepper.collect()
    assert stepper.num_free_blocks == 16
    assert stepper.reason("a") == "length"


def test_an_export_reports_its_prefix_hits_before_it_computes() -> None:
    stepper = Stepper()
    stepper.submit(make_request("warm", range(100, 110), max_tokens=1))
    stepper.run()
    stepper.submit(make_request("a", range(100, 110), export=True))
    stepper.scheduler.schedule()
    stepper.collect()
    assert [p.num_tokens for p in stepper.progress["a"]] == [8]


def test_a_cancelled_export_keeps_its_blocks_until_release() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    stepper.submit(make_request("a", 10, export=True))
    stepper.step()
    stepper.requests.cancel("a")
    stepper.collect()
    assert stepper.reason("a") == "cancelled"
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")
    stepper.collect()
    assert stepper.num_free_blocks == 16


def test_releasing_a_running_export_cancels_it() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    stepper.submit(make_request("a", 10, export=True), make_request("waits", 10, export=True))
    stepper.step()
    stepper.requests.release("a")
    stepper.requests.release("waits")
    stepper.collect()
    assert (stepper.reason("a"), stepper.reason("waits")) == ("cancelled", "cancelled")
    assert stepper.num_free_blocks == 16


def test_a_failed_export_keeps_its_blocks_until_release() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 8, export=True))
    stepper.scheduler.fail(stepper.scheduler.schedule(), InternalError("no luck"))
    stepper.collect()
    assert stepper.reason("a") == "error"
    assert stepper.num_free_blocks == 14
    stepper.requests.release("a")
    assert stepper.num_free_blocks == 16


def start_import(stepper: Stepper, request: EngineRequest) -> KvGrant:
    stepper.submit(request)
    assert stepper.step() == []
    return stepper.grants[request.request_id]


PROMPT = range(100, 110)
EXPECTED = expected_tokens(PROMPT, 4)


def test_an_import_is_granted_blocks_and_a_seat_and_waits() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    grant = start_import(stepper, make_request("a", PROMPT, await_kv=True))
    assert (grant.num_held_tokens, grant.block_ids, len(grant.block_hashes)) == (0, (0, 1, 2), 2)
    stepper.submit(make_request("b", 4), make_request("c", 6, await_kv=True))
    assert stepper.step() == []
    load = stepper.scheduler.load()
    # Tokens that are computed elsewhere are not pending here.
    assert (load.num_running, load.num_waiting, load.num_pending_prefill_tokens) == (0, 3, 4)
    assert load.num_queued == 2


def test_after_a_whole_import_the_reported_first_token_is_the_next_input() -> None:
    stepper = Stepper()
    grant = start_import(stepper, make_request("a", PROMPT, await_kv=True))
    stepper.requests.first_token("a", EXPECTED[0])
    stepper.collect()
    assert stepper.tokens["a"] == [EXPECTED[0]]
    stepper.write_prompt(grant, PROMPT, 10)
    stepper.requests.finish_import("a", 10)
    assert stepper.step() == [("a", 10, 1)]
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED
    assert stepper.ends["a"][0].num_received_tokens == 10


def test_after_a_whole_import_without_first_token_the_last_prompt_token_is_computed() -> None:
    stepper = Stepper()
    grant = start_import(stepper, make_request("a", PROMPT, await_kv=True))
    stepper.write_prompt(grant, PROMPT, 10)
    stepper.requests.finish_import("a", 10)
    assert stepper.step() == [("a", 9, 1)]
    stepper.requests.first_token("a", EXPECTED[0])  # too late: it was sampled here
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("num_valid", [0, 3, 4, 8, 9])
def test_what_is_missing_after_an_import_is_computed(num_valid: int, reported: bool) -> None:
    stepper = Stepper()
    grant = start_import(stepper, make_request("a", PROMPT, await_kv=True))
    if reported:
        stepper.requests.first_token("a", EXPECTED[0])
    stepper.write_prompt(grant, PROMPT, num_valid)
    stepper.requests.finish_import("a", num_valid)
    assert stepper.step() == [("a", num_valid, 10 + reported - num_valid)]
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED
    assert stepper.num_free_blocks == 16


def test_an_import_holds_its_prefix_hits_and_imports_at_least_one_token() -> None:
    stepper = Stepper()
    stepper.submit(make_request("warm", range(100, 108), max_tokens=1))
    stepper.run()
    grant = start_import(stepper, make_request("a", range(100, 108), await_kv=True))
    assert (grant.num_held_tokens, grant.block_ids) == (4, (0, 2))
    stepper.requests.finish_import("a", 4)
    assert stepper.step() == [("a", 4, 4)]
    stepper.run()
    end = stepper.ends["a"][0]
    assert (end.num_cached_tokens, end.num_received_tokens) == (4, 0)


def test_an_import_holds_what_is_cached_of_its_resumed_tokens_too_but_not_all() -> None:
    prompt = range(100, 108)
    expected = expected_tokens(prompt, 9)
    stepper = Stepper()
    stepper.submit(make_request("warm", prompt, max_tokens=9))
    stepper.run()
    assert len(stepper.cached) == 4
    request = make_request("a", prompt, await_kv=True, resume=expected[:7], max_tokens=9)
    assert start_import(stepper, request).num_held_tokens == 12


def test_imported_blocks_are_hit_by_the_next_request() -> None:
    stepper = Stepper()
    grant = start_import(stepper, make_request("a", PROMPT, await_kv=True, max_tokens=1))
    stepper.write_prompt(grant, PROMPT, 9)
    stepper.requests.finish_import("a", 9)
    stepper.submit(make_request("b", PROMPT, max_tokens=1))
    assert stepper.step() == [("a", 9, 1), ("b", 8, 2)]


def test_imports_are_granted_in_turn_even_when_the_budget_is_spent() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    stepper.submit(make_request("local", 8), make_request("import", 4, await_kv=True))
    assert stepper.step() == [("local", 0, 4)]
    assert "import" in stepper.grants
    stepper.submit(make_request("waits", 4), make_request("behind", 4, await_kv=True))
    stepper.step()
    assert "behind" not in stepper.grants


def test_a_cancelled_import_ends_at_once_but_its_blocks_stay_until_finish_import() -> None:
    stepper = Stepper()
    start_import(stepper, make_request("a", PROMPT, await_kv=True))
    stepper.requests.cancel("a")
    stepper.requests.first_token("a", EXPECTED[0])
    stepper.collect()
    assert (stepper.reason("a"), stepper.tokens["a"]) == ("cancelled", [])
    assert stepper.num_free_blocks == 13
    stepper.requests.release("a")  # not an export
    assert stepper.num_free_blocks == 13
    stepper.requests.finish_import("a", 0)
    stepper.requests.finish_import("a", 0)
    assert stepper.step() == []
    assert stepper.num_free_blocks == 16


def test_an_import_cancelled_before_its_grant_is_forgotten() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    stepper.submit(make_request("first", 4), make_request("a", PROMPT, await_kv=True))
    stepper.step()
    stepper.requests.cancel("a")
    stepper.requests.finish_import("a", 10)
    stepper.run()
    assert (stepper.reason("a"), stepper.grants) == ("cancelled", {})
    assert stepper.num_free_blocks == 16


def test_finish_import_without_a_grant_is_ignored() -> None:
    stepper = Stepper(make_info(max_num_seqs=1))
    stepper.submit(make_request("first", 4), make_request("a", PROMPT, await_kv=True))
    stepper.step()
    stepper.requests.finish_import("a", 0)
    stepper.run()
    assert stepper.grants["a"].num_held_tokens == 0
    assert "a" not in stepper.ends


def test_a_first_token_that_ends_the_request_leaves_the_verified_blocks_in_the_cache() -> None:
    stepper = Stepper()
    request = make_request("a", PROMPT, await_kv=True, stop=(EXPECTED[0],))
    grant = start_import(stepper, request)
    stepper.requests.first_token("a", EXPECTED[0])
    stepper.collect()
    assert stepper.reason("a") == "stop"
    assert stepper.num_free_blocks == 13
    stepper.write_prompt(grant, PROMPT, 8)
    stepper.requests.finish_import("a", 8)
    stepper.collect()
    assert stepper.num_free_blocks == 16
    assert stepper.cached == set(grant.block_hashes)


@pytest.mark.parametrize(("num_imported", "computed"), [(10, ("a", 10, 2)), (12, ("a", 11, 1))])
def test_a_resumed_import_imports_the_resumed_tokens_too(
    num_imported: int, computed: tuple[str, int, int]
) -> None:
    stepper = Stepper()
    request = make_request("a", PROMPT, await_kv=True, resume=EXPECTED[:2])
    grant = start_import(stepper, request)
    assert (grant.num_held_tokens, grant.block_ids) == (0, (0, 1, 2))
    assert len(grant.block_hashes) == 3
    stepper.requests.first_token("a", 77)  # already generated elsewhere
    stepper.write_prompt(grant, [*PROMPT, *EXPECTED[:2]], num_imported)
    stepper.requests.finish_import("a", num_imported)
    assert stepper.step() == [computed]
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED[2:]


@pytest.mark.parametrize("num_valid", [3, 11])
def test_an_import_that_counts_wrongly_ends_with_an_error(num_valid: int) -> None:
    stepper = Stepper()
    stepper.submit(make_request("warm", range(100, 104), max_tokens=1))
    stepper.run()
    start_import(stepper, make_request("a", PROMPT, await_kv=True))
    stepper.requests.finish_import("a", num_valid)
    stepper.collect()
    error = stepper.ends["a"][0].error
    assert isinstance(error, InternalError)
    assert f"{num_valid} valid tokens, but 4 were held and 10 were to come" in error.message
    assert stepper.num_free_blocks == 16


def test_a_first_token_outside_the_vocabulary_is_sampled_here() -> None:
    stepper = Stepper()
    start_import(stepper, make_request("a", PROMPT, await_kv=True))
    stepper.requests.first_token("a", 1000)
    stepper.requests.finish_import("a", 0)
    stepper.run()
    assert tuple(stepper.tokens["a"]) == EXPECTED
    assert stepper.num_free_blocks == 16


def test_an_import_in_progress_is_not_preempted() -> None:
    stepper = Stepper(make_info(num_blocks=4))
    stepper.submit(make_request("a", 7, max_tokens=6))
    stepper.step()
    stepper.submit(make_request("import", 7, await_kv=True, priority=9))
    stepper.step()
    assert "import" in stepper.grants
    assert stepper.step() == []  # a needs a third block and gets none
    assert [request.request_id for request in stepper.requests.active] == ["import"]
    stepper.requests.cancel("import")
    stepper.requests.finish_import("import", 0)
    stepper.run()
    assert stepper.reason("a") == "length"


def test_a_pin_holds_the_longest_cached_run_until_release() -> None:
    stepper = Stepper(make_info(num_blocks=4))
    stepper.submit(make_request("a", PROMPT, max_tokens=1, export=True))
    stepper.run()
    hashes = stepper.exports["a"].block_hashes
    stepper.requests.release("a")
    assert stepper.requests.pin("pin", [*hashes, b"unknown"]) == (0, 1)
    assert stepper.num_free_blocks == 2
    with pytest.raises(InvalidRequestError, match="'pin' is in use"):
        stepper.requests.pin("pin", hashes)
    stepper.requests.release("pin")
    stepper.collect()
    assert stepper.num_free_blocks == 4


def test_a_snapshot_names_all_cached_blocks_after_the_step() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 8, max_tokens=1))
    stepper.run()
    stepper.scheduler.want_snapshot()
    output = stepper.scheduler.take_output(stepper.scheduler.load())
    assert output is not None
    assert set(output.cache_snapshot or ()) == stepper.cached
    assert len(stepper.cached) == 2
    assert stepper.scheduler.take_output(stepper.scheduler.load()) is None


def test_a_chunk_that_says_nothing_else_tells_the_load_after_it_is_computed() -> None:
    stepper = Stepper(max_num_batched_tokens=3)
    scheduler = stepper.scheduler
    stepper.submit(make_request("a", 10, max_tokens=1))
    batch = scheduler.schedule()
    assert scheduler.take_output(scheduler.load(), load_is_news=False) is None
    scheduler.update(batch, stepper.runner.execute(batch))
    output = scheduler.take_output(scheduler.load())
    assert output is not None
    assert not output.outputs
    assert (output.load.num_running, output.load.num_pending_prefill_tokens) == (1, 7)
