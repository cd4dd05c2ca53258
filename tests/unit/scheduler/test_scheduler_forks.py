"""Forks: requests that share the KV of their leader's prompt. All block ids are literal."""

import pytest

from pagemesh.errors import InvalidRequestError
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Stepper, make_info, make_request

PROMPT = range(100, 110)  # two blocks of 4 and a half


def tables(stepper: Stepper) -> dict[str, list[int]]:
    return {request.request_id: request.block_ids for request in stepper.requests.active}


def submit_family(stepper: Stepper, num_forks: int = 1, max_tokens: int = 4) -> None:
    """A leader "a" with seed 0 and forks "f1", "f2" … of it with seeds 1, 2 …"""
    stepper.submit(make_request("a", PROMPT, max_tokens=max_tokens))
    for seed in range(1, num_forks + 1):
        fork = make_request(f"f{seed}", PROMPT, max_tokens=max_tokens, seed=seed, fork_of="a")
        stepper.submit(fork)


def check_family(stepper: Stepper, num_forks: int = 1, max_tokens: int = 4) -> None:
    """Every fork's tokens are those of a request alone with its seed."""
    for seed in range(1, num_forks + 1):
        assert tuple(stepper.tokens[f"f{seed}"]) == expected_tokens(PROMPT, max_tokens, seed)
        assert stepper.reason(f"f{seed}") == "length"


@pytest.mark.parametrize("caching", [True, False])
def test_forks_share_the_prompt_and_compute_its_last_token(caching: bool) -> None:
    stepper = Stepper(enable_prefix_caching=caching)
    submit_family(stepper, num_forks=2)
    assert stepper.step() == [("a", 0, 10)]
    assert stepper.step() == [("a", 10, 1), ("f1", 9, 1), ("f2", 9, 1)]
    assert tables(stepper) == {"a": [0, 1, 2], "f1": [0, 1, 3], "f2": [0, 1, 4]}
    # Both are about to write into block 2.
    assert stepper.moves.copies == ((2, 3), (2, 4))
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected_tokens(PROMPT, 4)
    check_family(stepper, num_forks=2)
    assert [stepper.ends[name][0].num_cached_tokens for name in ("a", "f1", "f2")] == [0, 9, 9]
    assert stepper.num_free_blocks == 16


@pytest.mark.parametrize(
    ("num_prompt_tokens", "table", "copies"),
    [(8, [0, 3, 4], ((1, 3),)), (9, [0, 1, 3], ())],
    ids=["full block", "first token of a block"],
)
def test_only_a_block_with_kv_that_is_kept_is_copied(
    num_prompt_tokens: int, table: list[int], copies: tuple[tuple[int, int], ...]
) -> None:
    stepper = Stepper(enable_prefix_caching=False)
    prompt = PROMPT[:num_prompt_tokens]
    stepper.submit(make_request("a", prompt), make_request("f", prompt, seed=1, fork_of="a"))
    stepper.step()
    assert stepper.step()[1] == ("f", num_prompt_tokens - 1, 1)
    assert tables(stepper)["f"] == table
    assert stepper.moves.copies == copies
    stepper.run()
    assert tuple(stepper.tokens["f"]) == expected_tokens(prompt, 4, 1)


def test_a_fork_waits_for_the_prompt_and_holds_nobody_up() -> None:
    stepper = Stepper(max_num_batched_tokens=6)
    submit_family(stepper)
    stepper.submit(make_request("other", 3, max_tokens=2))
    assert stepper.step() == [("a", 0, 6)]
    # Of the fork's prompt, it will compute the last token alone.
    assert stepper.scheduler.load().num_pending_prefill_tokens == 4 + 1 + 3
    assert stepper.step() == [("a", 6, 4), ("other", 0, 2)]
    assert stepper.step() == [("a", 10, 1), ("other", 2, 1), ("f1", 9, 1)]
    stepper.run()
    check_family(stepper)


def test_what_a_resumed_fork_computes_itself_is_pending() -> None:
    stepper = Stepper(max_num_batched_tokens=8)
    resumed = make_request("f", PROMPT, seed=1, fork_of="a", resume=(7, 8, 9), max_tokens=8)
    stepper.submit(make_request("a", PROMPT), resumed)
    assert stepper.step() == [("a", 0, 8)]
    assert stepper.scheduler.load().num_pending_prefill_tokens == len(PROMPT) - 8 + 3
    stepper.run()
    assert stepper.scheduler.load().num_pending_prefill_tokens == 0


def test_a_fork_that_comes_late_shares_what_is_there() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, max_tokens=8))
    for _ in range(4):
        stepper.step()
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    assert stepper.step() == [("a", 13, 1), ("f1", 9, 1)]
    stepper.run()
    check_family(stepper)


def test_a_fork_of_a_prompt_of_one_token_has_nothing_to_wait_for() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", [7]), make_request("f1", [7], seed=1, fork_of="a"))
    assert stepper.step() == [("a", 0, 1), ("f1", 0, 1)]
    stepper.run()
    assert tuple(stepper.tokens["f1"]) == expected_tokens([7], 4, 1)


def test_a_fork_of_a_fork_shares_as_well() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    submit_family(stepper)
    stepper.submit(make_request("f2", PROMPT, seed=2, fork_of="f1"))
    stepper.step()
    assert stepper.step() == [("a", 10, 1), ("f1", 9, 1), ("f2", 9, 1)]
    # What the first fork is about to have is not there yet.
    assert stepper.moves.copies == ((2, 3), (2, 4))
    stepper.run()
    check_family(stepper, num_forks=2)


def test_a_resumed_fork_shares_the_whole_prompt() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT))
    known = expected_tokens(PROMPT, 2, 1)
    stepper.submit(make_request("f1", PROMPT, seed=1, resume=known, fork_of="a"))
    stepper.step()
    assert stepper.step() == [("a", 10, 1), ("f1", 10, 2)]
    stepper.run()
    assert tuple(stepper.tokens["f1"]) == expected_tokens(PROMPT, 4, 1)[2:]


@pytest.mark.parametrize("caching", [True, False])
def test_a_fork_of_a_leader_that_was_cancelled_is_a_request_like_any_other(caching: bool) -> None:
    stepper = Stepper(max_num_batched_tokens=9, enable_prefix_caching=caching)
    submit_family(stepper)
    assert stepper.step() == [("a", 0, 9)]
    stepper.requests.cancel("a")
    assert stepper.step() == [("f1", 8, 2)] if caching else [("f1", 0, 9)]
    stepper.run()
    check_family(stepper)


def test_a_fork_of_a_leader_that_never_ran_is_a_request_like_any_other() -> None:
    stepper = Stepper()
    submit_family(stepper)
    stepper.requests.cancel("a")
    assert stepper.step() == [("f1", 0, 10)]
    stepper.run()
    check_family(stepper)


def test_a_fork_of_a_leader_that_ended_with_its_prompt_hits_what_that_left() -> None:
    stepper = Stepper()
    submit_family(stepper, max_tokens=1)
    assert stepper.step() == [("a", 0, 10)]
    assert stepper.step() == [("f1", 8, 2)]
    check_family(stepper, max_tokens=1)


def test_a_fork_of_a_request_that_nobody_knows_is_a_request_like_any_other() -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", 70), make_request("f1", PROMPT, seed=1, fork_of="a"))
    stepper.collect()
    assert stepper.reason("a") == "error"  # longer than the model's context
    assert stepper.step() == [("f1", 0, 10)]
    stepper.run()
    check_family(stepper)


def test_a_fork_waits_while_its_preempted_leader_is_computed_again() -> None:
    stepper = Stepper(make_info(num_blocks=7), enable_prefix_caching=False)
    stepper.submit(make_request("first", 7, max_tokens=12))  # 5 blocks in the end
    stepper.submit(make_request("a", PROMPT, max_tokens=9))
    while not len(stepper.requests.waiting):
        stepper.step()
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    stepper.run()
    check_family(stepper)
    assert stepper.ends["f1"][0].num_cached_tokens == 9
    assert tuple(stepper.tokens["a"]) == expected_tokens(PROMPT, 9)


def test_a_preempted_fork_is_computed_again_or_shares_again() -> None:
    stepper = Stepper(make_info(num_blocks=6), enable_prefix_caching=False)
    submit_family(stepper, num_forks=2, max_tokens=9)
    stepper.run()
    assert tuple(stepper.tokens["a"]) == expected_tokens(PROMPT, 9)
    check_family(stepper, num_forks=2, max_tokens=9)


def test_a_fork_does_not_wait_for_a_leader_behind_it() -> None:
    stepper = Stepper(make_info(max_num_seqs=2), enable_prefix_caching=False)
    stepper.submit(
        make_request("a", PROMPT, priority=5),
        make_request("other", 4),
        make_request("f1", PROMPT, seed=1, fork_of="a"),
    )
    assert stepper.step() == [("other", 0, 4), ("f1", 0, 10)]
    stepper.run()
    check_family(stepper)


def test_a_fork_waits_for_its_leaders_import() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, await_kv=True))
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    assert stepper.step() == []
    stepper.requests.first_token("a", expected_tokens(PROMPT, 1)[0])
    assert stepper.step() == []
    stepper.write_prompt(stepper.grants["a"], PROMPT, 10)
    stepper.requests.finish_import("a", 10)
    assert stepper.step() == [("a", 10, 1), ("f1", 9, 1)]
    stepper.run()
    check_family(stepper)


def test_a_fork_shares_what_an_import_without_its_first_token_brought() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, await_kv=True))
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    stepper.step()
    stepper.write_prompt(stepper.grants["a"], PROMPT, 10)
    stepper.requests.finish_import("a", 10)
    assert stepper.step() == [("a", 9, 1), ("f1", 9, 1)]
    stepper.run()
    check_family(stepper)


def test_blocks_that_an_importer_may_still_write_are_not_shared() -> None:
    stepper = Stepper(enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, await_kv=True))
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    stepper.step()
    stepper.requests.cancel("a")
    assert stepper.step() == [("f1", 0, 10)]
    stepper.requests.finish_import("a", 0)
    stepper.run()
    check_family(stepper)


def test_an_export_is_no_leader() -> None:
    stepper = Stepper(max_num_batched_tokens=12, enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, export=True))
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    assert stepper.step() == [("a", 0, 10), ("f1", 0, 2)]
    stepper.run()
    check_family(stepper)
    stepper.requests.release("a")


def test_a_fork_waits_for_a_seat_and_blocks() -> None:
    stepper = Stepper(make_info(num_blocks=4), enable_prefix_caching=False)
    stepper.submit(make_request("a", PROMPT, max_tokens=2), make_request("small", 3, max_tokens=2))
    stepper.submit(make_request("f1", PROMPT, seed=1, fork_of="a"))
    assert stepper.step() == [("a", 0, 10), ("small", 0, 3)]
    assert stepper.step() == [("a", 10, 1), ("small", 3, 1)]  # one more block was wanted
    stepper.run()
    check_family(stepper)


@pytest.mark.parametrize(
    ("field", "changes"),
    [("prompt_token_ids", {"prompt": range(100, 111)}), ("cache_salt", {"salt": b"other"})],
)
def test_a_fork_with_other_kv_than_its_leader_is_refused(
    field: str, changes: dict[str, object]
) -> None:
    stepper = Stepper()
    stepper.submit(make_request("a", PROMPT))
    fork = {"prompt": PROMPT, "fork_of": "a", **changes}
    stepper.submit(make_request("f1", **fork))  # type: ignore[arg-type]
    stepper.collect()
    error = stepper.ends["f1"][0].error
    assert isinstance(error, InvalidRequestError)
    assert error.message == f"fork_of is 'a', whose {field} is another"


@pytest.mark.parametrize("lease", ["export", "await_kv"])
def test_a_fork_with_a_lease_is_refused(lease: str) -> None:
    stepper = Stepper()
    fork = make_request(
        "f1", PROMPT, fork_of="a", export=lease == "export", await_kv=lease == "await_kv"
    )
    stepper.submit(fork)
    stepper.collect()
    error = stepper.ends["f1"][0].error
    assert isinstance(error, InvalidRequestError)
    assert error.message == "fork_of is 'a', but a fork can neither export nor import KV"
