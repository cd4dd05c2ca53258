"""Real workers that read each other's KV in memory: kill -9 of either leaves no mapping and no block behind."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.faults.pair import LONG_PROMPT, PROMPT, Pair, until
from tests.support.link.running import running_link
from tests.support.mappings import num_memories_held, num_read_only_mappings
from tests.support.worker_process import WorkerProcess, worker_processes

pytestmark = pytest.mark.costly

ROLES = {"prefill-1": "prefill", "decode-1": "decode"}
ARGUMENTS = ("--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--kv-cache-memory", "0.05")
RECEIVED = "pagemesh:kv_bytes_received_total"


@pytest.fixture(scope="module")
def _running_sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("sharing")
    with (
        worker_processes(folder, ROLES, *ARGUMENTS) as (prefill, decode),
        running_link(prefill.address) as link,
    ):
        yield Pair(prefill, decode, link)


@pytest.fixture
def sharing(_running_sharing: Pair) -> Pair:
    """Both workers serve, and nobody reads anybody's memory."""
    _running_sharing.revive()
    return _running_sharing


def num_mapped(worker: WorkerProcess) -> int:
    return num_read_only_mappings(worker.process.pid)


def kill_both_processes(worker: WorkerProcess) -> None:
    """The worker and its engine, neither of which hears of the other's end before."""
    process = psutil.Process(worker.process.pid)
    (engine,) = process.children()
    for each in (engine, process):
        each.suspend()
    for each in (engine, process):
        each.kill()
    worker.kill()


async def test_memory_is_mapped_once_and_tokens_are_the_same(sharing: Pair) -> None:
    async with sharing.session() as session:
        await sharing.undisturbed(session, LONG_PROMPT)
        before = sharing.decode.metric(RECEIVED)
        handle = await sharing.submit(session, sharing.prefill.peer(), prompt=LONG_PROMPT)
        await until(lambda: num_mapped(sharing.decode) == 1, "the memory is mapped")
        await sharing.assert_same_tokens(session, handle, LONG_PROMPT)
        handle = await sharing.submit(session, sharing.prefill.peer())
        await sharing.assert_same_tokens(session, handle, PROMPT)
    assert sharing.all_failures() == 0
    num_bytes = sharing.decode.metric(RECEIVED) - before
    assert num_bytes > 2**20
    assert num_mapped(sharing.decode) == 1
    await sharing.assert_all_blocks_free()


async def test_a_sender_that_ends_while_nobody_reads_leaves_nothing(sharing: Pair) -> None:
    async with sharing.session() as session:
        handle = await sharing.submit(session, sharing.prefill.peer())
        await sharing.assert_same_tokens(session, handle)
    assert num_mapped(sharing.decode) == 1
    kill_both_processes(sharing.prefill)
    await until(lambda: num_mapped(sharing.decode) == 0, "nothing is mapped")
    assert num_memories_held(sharing.decode.process.pid) == 1


async def test_a_sender_killed_while_its_memory_is_read_leaves_nothing(sharing: Pair) -> None:
    async with sharing.session() as session:
        await sharing.undisturbed(session, LONG_PROMPT)
        before = sharing.decode.metric(RECEIVED)
        handle = await sharing.submit(session, sharing.prefill.peer(), prompt=LONG_PROMPT)
        await until(lambda: sharing.decode.metric(RECEIVED) > before, "some KV came")
        assert num_mapped(sharing.decode) == 1
        kill_both_processes(sharing.prefill)
        await sharing.assert_same_tokens(session, handle, LONG_PROMPT)
    await until(lambda: num_mapped(sharing.decode) == 0, "nothing is mapped")
    assert num_memories_held(sharing.decode.process.pid) == 1
    await sharing.assert_all_blocks_free()


async def test_a_receiver_killed_while_it_reads_frees_the_sender(sharing: Pair) -> None:
    async with sharing.session() as session:
        before = sharing.decode.metric(RECEIVED)
        # So many that some of it is still to come when it is known that some came.
        for _ in range(4):
            await sharing.submit(session, sharing.prefill.peer(), prompt=LONG_PROMPT)
        await until(lambda: sharing.decode.metric(RECEIVED) > before, "some KV came")
        assert sharing.prefill.num_used_blocks() > 0
        kill_both_processes(sharing.decode)
        await sharing.assert_all_blocks_free(3.0)
    sharing.revive()
    async with sharing.session() as session:
        handle = await sharing.submit(session, sharing.prefill.peer())
        await sharing.assert_same_tokens(session, handle)
