"""Messages of KV streams that arrive wrong, twice, late or not at all: between real worker processes."""

from __future__ import annotations

import pytest

from tests.faults.pair import (
    BLOCK_SIZE,
    PROMPT,
    REJECTED,
    SECOND_TURN,
    WHOLE_BLOCKS_PROMPT,
    Pair,
    assert_blocks_free,
)
from tests.support.link.faults import Fault, Kind, Part
from tests.support.link.running import RunningLink
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.costly

TOKENS_PULLED = "pagemesh:kv_tokens_received_total"

WRONG_MESSAGES = [
    pytest.param(
        Fault(Kind.FLIP, "blocks", 1, Part.PAYLOAD, 0.4), "KV_WRONG_CHECKSUM", id="payload"
    ),
    pytest.param(
        Fault(Kind.FLIP, "blocks", 0, Part.CONTENT, 0.3), "KV_WRONG_CHECKSUM", id="what it says"
    ),
    pytest.param(
        Fault(Kind.FLIP, "blocks", 2, Part.CHECKSUM, 0.9), "KV_WRONG_CHECKSUM", id="checksum"
    ),
    pytest.param(Fault(Kind.FLIP, "header", 0, Part.CONTENT), "KV_WRONG_CHECKSUM", id="header"),
    pytest.param(
        Fault(Kind.FLIP, "first_token", 0, Part.CONTENT, 0.99),
        "KV_WRONG_CHECKSUM",
        id="first token",
    ),
    pytest.param(Fault(Kind.FLIP, "blocks", 0, Part.ANY, 0.0), "KV_MALFORMED", id="first bit"),
    pytest.param(Fault(Kind.TRUNCATE, "blocks", 1, place=0.9), "KV_MALFORMED", id="short blocks"),
    pytest.param(Fault(Kind.TRUNCATE, "header", place=0.0), "KV_MALFORMED", id="empty header"),
    pytest.param(Fault(Kind.DUPLICATE, "blocks", 1), "KV_DUPLICATE", id="blocks twice"),
    pytest.param(Fault(Kind.DUPLICATE, "header"), "KV_DUPLICATE", id="header twice"),
    pytest.param(Fault(Kind.DROP, "header"), "KV_NO_HEADER", id="no header"),
    pytest.param(Fault(Kind.REORDER, "header"), "KV_NO_HEADER", id="header late"),
]


@pytest.mark.product(most=5)
@pytest.mark.parametrize(("fault", "reason"), WRONG_MESSAGES)
async def test_what_is_wrong_is_refused_and_computed_here(
    pair: Pair, fault: Fault, reason: str
) -> None:
    async with pair.session() as session:
        await pair.undisturbed(session)
        refused, failed = pair.decode.metric(REJECTED, reason=reason), pair.failures(reason)
        num_lines = len(pair.decode.lines())
        pair.link.arm(fault)
        await pair.assert_same_tokens(session, await pair.submit(session, pair.over_link))
    assert pair.decode.metric(REJECTED, reason=reason) - refused == 1
    assert pair.failures(reason) - failed == 1
    (line,) = pair.decode.lines()[num_lines:]
    assert (line["level"], line["reason"], line["peer"]) == ("warning", reason, "prefill-0")
    await pair.assert_all_blocks_free()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(
            Fault(Kind.FLIP, "blocks", 1, Part.PAYLOAD, 0.6), "KV_WRONG_CHECKSUM", id="payload"
        ),
        pytest.param(
            Fault(Kind.FLIP, "blocks", 0, Part.CONTENT, 0.3), "KV_WRONG_CHECKSUM", id="what it says"
        ),
        pytest.param(Fault(Kind.FLIP, "header", 0, Part.CONTENT), "KV_WRONG_CHECKSUM", id="header"),
    ],
)
async def test_what_is_wrong_in_a_pull_is_refused_and_computed_by_who_pulled(
    pair: Pair, link_to_decode: RunningLink, fault: Fault, reason: str
) -> None:
    def num_refused() -> float:
        return pair.prefill.metric(REJECTED, reason=reason)

    async with pair.session() as session:
        source, salt = await pair.hold_first_turn(session, link_to_decode)
        refused, complete = num_refused(), pair.num_complete()
        pulled = pair.prefill.metric(TOKENS_PULLED)
        link_to_decode.arm(fault)
        handle = await pair.submit(
            session, pair.prefill.peer(), prompt=SECOND_TURN, source=source, salt=salt
        )
        await pair.assert_same_tokens(session, handle, SECOND_TURN)
    assert num_refused() - refused == 1
    assert pair.prefill.metric(TOKENS_PULLED) - pulled < len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
    assert pair.num_complete() - complete == 1
    await pair.assert_all_blocks_free()


STREAMS_THAT_END = [
    pytest.param(Fault(Kind.DROP, "blocks", 1), "KV_INCOMPLETE", id="blocks are missing"),
    pytest.param(Fault(Kind.DROP, "first_token"), "KV_INCOMPLETE", id="the token is missing"),
    pytest.param(Fault(Kind.END, "header"), "KV_INCOMPLETE", id="ends at once"),
    pytest.param(Fault(Kind.END, "blocks", 2), "KV_INCOMPLETE", id="ends between blocks"),
    pytest.param(Fault(Kind.ABORT, "blocks", 3), "UNAVAILABLE", id="fails between blocks"),
    pytest.param(Fault(Kind.SEVER, "header"), "UNAVAILABLE", id="breaks before the header"),
    pytest.param(Fault(Kind.SEVER, "first_token"), "UNAVAILABLE", id="breaks before the token"),
]


@pytest.mark.parametrize(("fault", "reason"), STREAMS_THAT_END)
async def test_what_never_comes_is_computed_here(pair: Pair, fault: Fault, reason: str) -> None:
    async with pair.session() as session:
        await pair.undisturbed(session)
        failed = pair.failures(reason)
        pair.link.arm(fault)
        await pair.assert_same_tokens(session, await pair.submit(session, pair.over_link))
    assert pair.failures(reason) - failed == 1
    await pair.assert_all_blocks_free()


async def test_blocks_in_another_order_are_as_good(pair: Pair) -> None:
    async with pair.session() as session:
        failed = pair.all_failures()
        pair.link.arm(Fault(Kind.REORDER, "blocks", 1))
        await pair.assert_same_tokens(session, await pair.submit(session, pair.over_link))
    assert pair.all_failures() == failed
    await pair.assert_all_blocks_free()


async def test_the_next_worker_is_asked_for_the_rest(
    pair: Pair, next_prefill: WorkerProcess
) -> None:
    def num_sent() -> float:
        return next_prefill.metric("pagemesh:kv_blocks_sent_total", rpc="prefill")

    prompt = WHOLE_BLOCKS_PROMPT
    async with pair.session() as session:
        complete, sent = pair.num_complete(), num_sent()
        num_lines = len(pair.decode.lines())
        pair.link.arm(Fault(Kind.FLIP, "last_blocks"), Fault(Kind.TRUNCATE, "header"))
        handle = await pair.submit(
            session, pair.over_link, pair.over_link, next_prefill.peer(), prompt=prompt
        )
        await pair.assert_same_tokens(session, handle, prompt)
    assert pair.num_complete() == complete + 1
    first, second = pair.decode.lines()[num_lines:]
    assert 0 < first["num_verified_tokens"] == second["num_verified_tokens"] < len(prompt)
    num_missing = len(prompt) - first["num_verified_tokens"]
    assert num_sent() - sent == num_missing // BLOCK_SIZE
    await pair.assert_all_blocks_free()
    await assert_blocks_free(next_prefill)


async def test_kv_of_an_earlier_incarnation_is_refused(pair: Pair) -> None:
    async with pair.session() as session:
        refused = pair.decode.metric(REJECTED, reason="KV_WRONG_EPOCH")
        expected = pair.over_link
        expected.epoch += 1
        await pair.assert_same_tokens(session, await pair.submit(session, expected))
    assert pair.decode.metric(REJECTED, reason="KV_WRONG_EPOCH") - refused == 1
    await pair.assert_all_blocks_free()


@pytest.mark.parametrize("kind", ["header", "blocks", "last_blocks", "first_token"])
async def test_a_message_of_another_request_is_refused(pair: Pair, kind: str) -> None:
    # As long as the other, so that its messages differ only in what they carry.
    other = tuple(30 + (13 * i) % 500 for i in range(len(PROMPT)))
    async with pair.session() as session:
        undisturbed = await pair.undisturbed(session)
        assert undisturbed[0] != (await pair.undisturbed(session, other))[0]
        await pair.assert_same_tokens(
            session, await pair.submit(session, pair.over_link, prompt=other), other
        )
        failed = pair.failures("KV_WRONG_STREAM")
        pair.link.arm(Fault(Kind.REPLAY, kind))
        await pair.assert_same_tokens(session, await pair.submit(session, pair.over_link))
    assert pair.failures("KV_WRONG_STREAM") - failed == 1
    await pair.assert_all_blocks_free()
