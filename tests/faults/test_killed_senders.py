"""A prefill worker that is killed, at whatever stage of a request: the next one serves it, or the decode worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import psutil
import pytest

from pagemesh.v1 import kv_transfer_pb2, types_pb2
from tests.faults.pair import (
    LONG_PROMPT,
    PROMPT,
    SECOND_TURN,
    WHOLE_BLOCKS_PROMPT,
    Pair,
    assert_blocks_free,
    until,
)
from tests.support.link.faults import Fault, Kind
from tests.support.link.running import RunningLink
from tests.support.worker_process import WorkerProcess
from tests.support.workers import RouterSession

pytestmark = pytest.mark.costly


class Scene:
    """Requests whose prefill worker is going to die."""

    def __init__(
        self,
        pair: Pair,
        session: RouterSession,
        link_to_decode: RunningLink,
        next_prefill: WorkerProcess,
    ) -> None:
        self.pair = pair
        self.session = session
        self.link_to_decode = link_to_decode
        self.asked: dict[int, Sequence[int]] = {}
        """Prompts by handle."""
        self._next = next_prefill.peer()

    async def ask(
        self,
        worker: types_pb2.PeerWorker,
        prompt: Sequence[int],
        source: kv_transfer_pb2.KvSource | None = None,
        salt: bytes | None = None,
    ) -> None:
        """Twice: of the worker alone, and of the worker with another one behind it."""
        for workers in ((worker,), (worker, self._next)):
            handle = await self.pair.submit(
                self.session, *workers, prompt=prompt, source=source, salt=salt
            )
            self.asked[handle] = prompt


async def is_connecting(scene: Scene) -> None:
    """The kernel took the connection, and nobody answers there any more."""
    pair = scene.pair
    port = int(pair.prefill.address.rpartition(":")[2])

    def connections() -> set[int]:
        process = psutil.Process(pair.decode.process.pid)
        found = process.net_connections("tcp")
        return {own.laddr.port for own in found if own.raddr and own.raddr.port == port}

    before = connections()
    pair.prefill.freeze()
    # As no channel calls it: so there is a connection to be made.
    await scene.ask(pair.prefill.peer(f"ipv4:{pair.prefill.address}"), WHOLE_BLOCKS_PROMPT)
    await until(lambda: bool(connections() - before), "the decode worker has called", 5.0)


async def is_queued(scene: Scene) -> None:
    """Others, which get no further, have the prefill worker's blocks."""
    pair = scene.pair
    held = pair.link.counts().get("hold", 0)
    pair.link.arm(*[Fault(Kind.HOLD, "header")] * 3)
    for _ in range(3):
        handle = await pair.submit(scene.session, pair.over_link, prompt=LONG_PROMPT)
        scene.asked[handle] = LONG_PROMPT
    await until(lambda: pair.link.counts().get("hold", 0) == held + 3, "all are held")
    await until(lambda: pair.prefill.num_used_blocks() == 3 * 119, "they have their blocks")
    await scene.ask(pair.prefill.peer(), PROMPT)
    await until(lambda: pair.prefill.metric("vllm:num_requests_waiting") == 2, "two are queued")


async def is_pulling(scene: Scene) -> None:
    """The decode worker holds the beginning of the prompt, which the prefill worker needs."""
    pair, link = scene.pair, scene.link_to_decode
    source, salt = await pair.hold_first_turn(scene.session, link)
    held = link.counts().get("hold", 0)
    link.arm(*[Fault(Kind.HOLD, "blocks")] * 2)
    await scene.ask(pair.prefill.peer(), SECOND_TURN, source, salt)
    await until(lambda: link.counts().get("hold", 0) == held + 2, "both are pulled")


async def is_sending(scene: Scene, fault: Fault) -> None:
    """A message was sent that does not arrive, and what follows does not either."""
    pair = scene.pair
    held = pair.link.counts().get("hold", 0)
    pair.link.arm(fault, fault)
    await scene.ask(pair.over_link, WHOLE_BLOCKS_PROMPT)
    await until(lambda: pair.link.counts().get("hold", 0) == held + 2, "both are held")


STAGES = [
    pytest.param(is_connecting, id="connecting"),
    pytest.param(is_queued, id="queued"),
    pytest.param(is_pulling, id="pulling"),
    *(
        pytest.param(partial(is_sending, fault=fault), id=name)
        for name, fault in {
            "header": Fault(Kind.HOLD, "header"),
            "first blocks": Fault(Kind.HOLD, "blocks", 0),
            "later blocks": Fault(Kind.HOLD, "blocks", 2),
            "first token": Fault(Kind.HOLD, "first_token"),
            "last blocks": Fault(Kind.HOLD, "last_blocks"),
        }.items()
    ),
]


@pytest.mark.product(most=3)
@pytest.mark.parametrize("reach", STAGES)
async def test_a_sender_killed_at_any_stage_of_a_request_costs_only_time(
    pair: Pair,
    link_to_decode: RunningLink,
    next_prefill: WorkerProcess,
    reach: Callable[[Scene], Awaitable[None]],
) -> None:
    async with pair.session() as session:
        scene = Scene(pair, session, link_to_decode, next_prefill)
        failed, complete = pair.failures("UNAVAILABLE"), pair.num_complete()
        await reach(scene)
        pair.prefill.kill()
        for handle, prompt in scene.asked.items():
            await pair.assert_same_tokens(session, handle, prompt)
        # Nobody knows yet that it is gone.
        handle = await pair.submit(session, pair.prefill.peer())
        await pair.assert_same_tokens(session, handle)
    # None of them ended before: other reasons would have ended the streams.
    assert pair.failures("UNAVAILABLE") - failed == len(scene.asked) + 1
    # By the next worker, which one of them could ask.
    assert pair.num_complete() - complete == 1
    await pair.assert_all_blocks_free()
    await assert_blocks_free(next_prefill)
