"""What a step computes: budget, order, admission, preemption. All block ids are literal."""

from pagemesh.scheduler.batch import ScheduledSequence
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Stepper, make_info, make_request


def tables(stepper: Stepper) -> dict[str, list[int]]:
    """Block tables of the requests with a place in the batch."""
    return {request.request_id: request.block_ids for request in stepper.requests.active}


def test_a_prompt_is_computed_in_chunks_and_sampled_at_its_end() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    request = make_request("a", 10, max_tokens=2)
    stepper.submit(request)
    prompt = request.prompt_token_ids
    for start, end, sampling in ((0, 4, None), (4, 8, None), (8, 10, request.sampling)):
        batch = stepper.scheduler.schedule()
        assert batch.sequences == (
            ScheduledSequence("a", list(prompt[start:end]), start, [0, 1, 2], sampling),
        )
        stepper.scheduler.update(batch, stepper.runner.execute(batch))
    assert stepper.step() == [("a", 10, 1)]
    assert stepper.step() == []
    assert tuple(stepper.tokens["a"]) == expected_tokens(prompt, 2)
    assert stepper.reason("a") == "length"
    assert stepper.num_free_blocks == 16


def test_decodes_come_before_prompts_in_the_same_budget() -> None:
    stepper = Stepper(max_num_batched_tokens=6)
    stepper.submit(make_request("a", 5))
    assert stepper.step() == [("a", 0, 5)]
    stepper.submit(make_request("urgent", 9, priority=-1))
    assert stepper.step() == [("a", 5, 1), ("urgent", 0, 5)]
    assert stepper.step() == [("a", 6, 1), ("urgent", 5, 4)]
    assert stepper.step() == [("urgent", 9, 1), ("a", 7, 1)]


def test_requests_run_by_priority_then_arrival() -> None:
    stepper = Stepper(max_num_batched_tokens=10)
    stepper.submit(
        make_request("late", 4, priority=1),
        make_request("first", 4),
        make_request("second", 4),
        make_request("urgent", 4, priority=-5),
    )
    assert stepper.step() == [("urgent", 0, 4), ("first", 0, 4), ("second", 0, 2)]


def test_a_more_urgent_prompt_takes_the_budget_from_a_prompt_in_progress() -> None:
    stepper = Stepper(max_num_batched_tokens=4)
    stepper.submit(make_request("long", 12))
    assert stepper.step() == [("long", 0, 4)]
    stepper.submit(make_request("urgent", 4, priority=-1, max_tokens=1))
    assert stepper.step() == [("urgent", 0, 4)]
    assert stepper.step() == [("long", 4, 4)]


def test_no_more_than_max_num_seqs_have_a_seat() -> None:
    stepper = Stepper(make_info(max_num_seqs=2))
    stepper.submit(*(make_request(name, 4, max_tokens=2) for name in "abc"))
    assert stepper.step() == [("a", 0, 4), ("b", 0, 4)]
    assert stepper.step() == [("a", 4, 1), ("b", 4, 1)]
    assert stepper.step() == [("c", 0, 4)]


def test_nobody_overtakes_a_request_that_waits_for_blocks() -> None:
    stepper = Stepper(make_info(num_blocks=4))
    stepper.submit(make_request("a", 7, max_tokens=2))  # 2 blocks
    stepper.step()
    stepper.submit(make_request("big", 12, max_tokens=1), make_request("small", 4, max_tokens=1))
    assert stepper.step() == [("a", 7, 1)]
    assert stepper.step() == [("big", 0, 12), ("small", 0, 4)]


def test_load_counts_seats_queue_and_missing_tokens() -> None:
    stepper = Stepper(make_info(max_num_seqs=2), max_num_batched_tokens=6)
    stepper.submit(make_request("a", 4), make_request("b", 9), make_request("c", 5))
    stepper.step()  # a: 4, b: 2 of 9
    load = stepper.scheduler.load()
    assert (load.num_running, load.num_waiting) == (2, 1)
    assert load.num_pending_prefill_tokens == 7 + 5
    assert load.num_free_blocks == 16 - 2 - 3


def test_blocks_are_reserved_for_the_known_tokens_and_the_next() -> None:
    stepper = Stepper()
    stepper.submit(
        make_request("goes on", 8),  # its first token is in block 2
        make_request("ends", 8, max_tokens=1),  # no KV for its only token
    )
    stepper.step()
    assert tables(stepper) == {"goes on": [0, 1, 2]}


def test_a_decode_grows_by_one_block_when_its_last_token_needs_it() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 3, max_tokens=8))
    sizes = []
    for _ in range(7):
        stepper.step()
        sizes.append(len(tables(stepper)["a"]))
    # KV of tokens: 3 (the prompt), then 4 … 9.
    assert sizes == [1, 1, 2, 2, 2, 2, 3]


def test_of_a_prompt_that_is_cached_whole_the_last_token_is_computed() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", range(100, 108), max_tokens=1))
    stepper.run()
    names = ["b", "c"]
    stepper.submit(*(make_request(name, range(100, 108), max_tokens=3) for name in names))
    assert stepper.step() == [("b", 7, 1), ("c", 7, 1)]
    # Whoever has the block that they hit may read it meanwhile.
    assert stepper.moves.copies == ((1, 2), (1, 4))
    assert tables(stepper) == {"b": [0, 2, 3], "c": [0, 4, 5]}
    stepper.run()
    for name in names:
        assert stepper.ends[name][0].num_cached_tokens == 7
        assert tuple(stepper.tokens[name]) == expected_tokens(range(100, 108), 3)


def test_a_pool_without_room_for_a_copy_has_the_last_block_computed() -> None:
    stepper = Stepper(make_info(num_blocks=2, block_size=4))
    stepper.submit(make_request("a", range(100, 108), max_tokens=1))
    stepper.run()
    stepper.submit(make_request("b", range(100, 108), max_tokens=1))
    assert stepper.step() == [("b", 4, 4)]
    assert stepper.ends["b"][0].num_cached_tokens == 4
    assert stepper.tokens["a"] == stepper.tokens["b"]


def test_what_is_to_be_copied_is_not_copied_over() -> None:
    stepper = Stepper(make_info(num_blocks=5, block_size=4))
    prompts = [range(100, 108), range(200, 208)]
    for prompt in prompts:
        stepper.submit(make_request(f"first {prompt}", prompt, max_tokens=1))
        stepper.run()
    stepper.submit(
        *(
            make_request(name, prompt, max_tokens=1)
            for name, prompt in zip("ab", prompts, strict=True)
        )
    )
    # But for block 1, which "a" copies, no block is left for another copy beside its source.
    assert stepper.step() == [("a", 7, 1), ("b", 4, 4)]
    assert stepper.moves.copies == ((1, 4),)
    for name, prompt in zip("ab", prompts, strict=True):
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, 1)


def test_hits_are_shared_and_fresh_blocks_are_not() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", range(100, 110)))
    stepper.step()
    stepper.submit(make_request("b", range(100, 110)))
    stepper.step()
    assert tables(stepper) == {"a": [0, 1, 2], "b": [0, 1, 3]}


def test_a_prompt_that_waits_for_budget_hits_what_was_computed_meanwhile() -> None:
    stepper = Stepper(max_num_batched_tokens=8)
    stepper.submit(
        make_request("a", range(100, 117), max_tokens=1),
        make_request("b", range(100, 117), max_tokens=1),
    )
    stepper.run()
    assert stepper.ends["b"][0].num_cached_tokens == 16


def test_generated_blocks_are_hit_by_the_next_turn() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", range(100, 106), max_tokens=7))
    stepper.run()
    history = [*range(100, 106), *stepper.tokens["a"]]
    stepper.submit(make_request("b", [*history, 5, 6, 7], max_tokens=1))
    # 13 tokens are known, the KV of the 13th was never computed.
    assert stepper.step() == [("b", 12, 4)]


def test_another_salt_hits_nothing() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", range(100, 110), salt=b"one"))
    stepper.run()
    stepper.submit(make_request("b", range(100, 110), salt=b"two"))
    assert stepper.step() == [("b", 0, 10)]


def test_without_prefix_caching_everything_is_computed() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", range(100, 110)))
    stepper.run()
    stepper.submit(make_request("b", range(100, 110)))
    assert stepper.step() == [("b", 0, 10)]
    assert stepper.cached == set()


def test_the_last_request_gives_its_blocks_to_an_earlier_one() -> None:
    stepper = Stepper(make_info(num_blocks=6), enable_prefix_caching=False)
    stepper.submit(make_request("a", 7, max_tokens=8), make_request("b", 7, max_tokens=8))
    stepper.submit(make_request("c", 7, max_tokens=8))
    stepper.step()
    stepper.step()
    assert tables(stepper) == {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    assert stepper.step() == [("a", 8, 1), ("b", 8, 1)]  # c's blocks 4 and 5, freed tail first
    assert tables(stepper) == {"a": [0, 1, 5], "b": [2, 3, 4]}
    stepper.run()
    for name in "abc":
        prompt = make_request(name, 7).prompt_token_ids
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, 8)
        assert stepper.reason(name) == "length"


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    stepper = Stepper(make_info(num_blocks=5))
    stepper.submit(make_request("a", 7, max_tokens=6), make_request("b", 11, max_tokens=3))
    stepper.step()
    stepper.step()
    assert stepper.step() == [("a", 8, 1)]  # b had 3 blocks and 13 tokens
    for _ in range(3):
        stepper.step()
    assert stepper.reason("a") == "length"
    # Two of b's three full blocks survived: the last was evicted first, for a.
    assert stepper.step() == [("b", 8, 5)]
    assert stepper.ends["b"][0].num_cached_tokens == 0
    # What was computed again is in the cache again.
    history = [*make_request("b", 11).prompt_token_ids, *stepper.tokens["b"]]
    stepper.submit(make_request("next turn", history))
    assert stepper.step() == [("next turn", 12, 2)]


def test_a_request_without_anyone_behind_it_preempts_itself() -> None:
    stepper = Stepper(make_info(num_blocks=4))
    stepper.submit(make_request("export", 8, export=True))
    stepper.step()
    stepper.submit(make_request("a", 7, max_tokens=4))
    stepper.step()
    stepper.step()
    assert stepper.step() == []
    assert tables(stepper) == {}
    assert stepper.scheduler.load().num_pending_prefill_tokens == 9
    stepper.requests.release("export")
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected_tokens(make_request("a", 7).prompt_token_ids, 4)


def test_an_export_behind_others_is_not_preempted() -> None:
    stepper = Stepper(make_info(num_blocks=4), max_num_batched_tokens=8)
    stepper.submit(make_request("a", 7, max_tokens=6))
    stepper.step()
    stepper.submit(make_request("export", 8, export=True, priority=9))
    assert stepper.step() == [("a", 7, 1), ("export", 0, 7)]
    assert stepper.step() == [("export", 7, 1)]
    assert stepper.reason("export") == "length"


def test_stop_tokens_are_suppressed_until_min_tokens() -> None:
    stepper = Stepper(eos_token_ids=(2,))
    stepper.submit(make_request("a", 4, max_tokens=3, min_tokens=1, stop=(7,)))
    stepper.submit(make_request("b", 4, max_tokens=3, min_tokens=1, stop=(7,), ignore_eos=True))
    batch = stepper.scheduler.schedule()
    assert [s.suppressed_token_ids for s in batch.sequences] == [(7, 2), (7,)]
    stepper.scheduler.update(batch, stepper.runner.execute(batch))
    batch = stepper.scheduler.schedule()
    assert [s.suppressed_token_ids for s in batch.sequences] == [(), ()]
