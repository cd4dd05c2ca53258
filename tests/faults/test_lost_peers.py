"""Workers that freeze, die, vanish or stall in mid-stream: real processes, noticed in time by the others."""

from __future__ import annotations

import time

import pytest

from tests.faults.pair import LONG_PROMPT, Pair, until
from tests.support.link.faults import Fault, Kind

pytestmark = pytest.mark.costly

NOTICED_WITHIN_S = 5.0
"""What is promised of frozen peers; what is configured leaves a second of it, for looking on two busy cores."""
NUM_PROMPTS = 10
"""So many take long enough to be seen, by a look every now and then, while they are prefilled."""


async def test_a_frozen_sender_is_noticed_in_five_seconds(pair: Pair) -> None:
    async with pair.session() as session:
        await pair.undisturbed(session, LONG_PROMPT)
        failed = pair.failures("UNAVAILABLE")
        handles = [
            await pair.submit(session, pair.prefill.peer(), prompt=LONG_PROMPT)
            for _ in range(NUM_PROMPTS)
        ]
        await until(lambda: pair.prefill.num_used_blocks() > 8, "the prompts are being prefilled")
        pair.prefill.freeze()
        try:
            frozen_at = time.monotonic()
            await until(lambda: pair.failures("UNAVAILABLE") > failed, "the stream was given up")
            assert time.monotonic() - frozen_at < NOTICED_WITHIN_S
            for handle in handles:
                await pair.assert_same_tokens(session, handle, LONG_PROMPT)
        finally:
            pair.prefill.thaw()
    await pair.assert_all_blocks_free()


async def test_a_frozen_receiver_is_noticed_in_five_seconds(pair: Pair) -> None:
    async with pair.session() as session:
        # More KV than all buffers between the two can take.
        handles = [
            await pair.submit(session, pair.prefill.peer(), prompt=LONG_PROMPT) for _ in range(7)
        ]
        await until(lambda: pair.prefill.num_used_blocks() > 8, "the prompts are being prefilled")
        pair.decode.freeze()
        try:
            frozen_at = time.monotonic()
            await until(lambda: pair.prefill.num_used_blocks() == 0, "the sender is free again")
            # The router's session goes the same way: nobody is left who could be answered.
            await until(lambda: session.has_ended, "the session ended")
            assert time.monotonic() - frozen_at < NOTICED_WITHIN_S
        finally:
            pair.decode.thaw()
        assert not all(session[handle].is_over for handle in handles)
    await pair.assert_all_blocks_free()


async def test_a_partition_in_mid_transfer_is_noticed_by_both_sides(pair: Pair) -> None:
    async with pair.session() as session:
        await pair.undisturbed(session, LONG_PROMPT)
        failed = pair.all_failures()
        handles = [
            await pair.submit(session, pair.over_tcp, prompt=LONG_PROMPT)
            for _ in range(NUM_PROMPTS)
        ]
        await until(lambda: pair.prefill.num_used_blocks() > 8, "the prompts are being prefilled")
        pair.link.swallow(True)
        try:
            cut_at = time.monotonic()
            await until(lambda: pair.all_failures() > failed, "the receiver gave up")
            assert time.monotonic() - cut_at < NOTICED_WITHIN_S
            await until(lambda: pair.prefill.num_used_blocks() == 0, "the sender is free again")
            assert time.monotonic() - cut_at < NOTICED_WITHIN_S
            for handle in handles:
                await pair.assert_same_tokens(session, handle, LONG_PROMPT)
            # A connection that is only now attempted fails as soon.
            again = await pair.submit(session, pair.over_tcp)
            await pair.assert_same_tokens(session, again)
        finally:
            pair.link.swallow(False)
        # Attempts to connect are a second or two apart; then KV comes over the link again.
        num_complete, deadline = pair.num_complete(), time.monotonic() + 10.0
        while pair.num_complete() == num_complete:
            assert time.monotonic() < deadline, "the link is not used again"
            await pair.assert_same_tokens(session, await pair.submit(session, pair.over_tcp))
    await pair.assert_all_blocks_free()


async def test_a_stalled_sender_is_given_up_and_a_full_pool_makes_others_wait(pair: Pair) -> None:
    async with pair.session() as session:
        failed = pair.failures("KV_STALLED")
        pair.link.arm(Fault(Kind.HOLD, "blocks", 2))
        stalled = await pair.submit(session, pair.over_link)
        # Its pool has 546 blocks, and each of these prompts 119.
        handles = [await pair.submit(session, pair.over_link, prompt=LONG_PROMPT) for _ in range(7)]
        await until(lambda: pair.decode.num_used_blocks() > 546 - 119, "no room for one more")
        for handle in handles:
            await pair.assert_same_tokens(session, handle, LONG_PROMPT)
        await pair.assert_same_tokens(session, stalled)
    assert pair.failures("KV_STALLED") - failed == 1
    await pair.assert_all_blocks_free()


async def test_a_receiver_that_is_killed_leaves_the_sender_free(pair: Pair) -> None:
    async with pair.session() as session:
        pair.link.arm(Fault(Kind.HOLD, "blocks", 4))
        await pair.submit(session, pair.over_link)
        await pair.submit(session, pair.prefill.peer(), prompt=LONG_PROMPT)
        await until(lambda: pair.prefill.num_used_blocks() > 8, "the prompts are being prefilled")
        pair.decode.kill()
        await until(lambda: session.has_ended, "the session ended")
    await pair.assert_all_blocks_free()
