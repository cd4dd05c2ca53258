"""A prefill and a decode worker of the demo model with a link between them, which tests have go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.pair import Pair
from tests.support.link.running import RunningLink, running_link
from tests.support.worker_process import WorkerProcess, worker_processes

ROLES = {"prefill-0": "prefill", "decode-0": "decode"}
# Small steps, so that a prompt's KV is a stream of many messages that takes its time.
ARGUMENTS = (
    *("--max-num-batched-tokens", "64", "--max-num-seqs", "16"),
    # All KV is to go over the link.
    "--no-share-kv-memory",
)
LARGE_POOL = ("--kv-cache-memory", "0.05")
"""546 blocks."""
SMALL_POOL = ("--kv-cache-memory", "0.035")
"""382 blocks: prompts that have their blocks on the decode worker may still wait for some on the other."""


@pytest.fixture(scope="session")
def _running_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("workers")
    with (
        worker_processes(
            folder,
            ROLES,
            *ARGUMENTS,
            own_arguments={"prefill-0": SMALL_POOL, "decode-0": LARGE_POOL},
        ) as (prefill, decode),
        running_link(prefill.address) as link,
    ):
        yield Pair(prefill, decode, link)


@pytest.fixture(scope="session")
def link_to_decode(_running_pair: Pair) -> Iterator[RunningLink]:
    """In front of the decode worker, from which the prefill worker may pull."""
    with running_link(_running_pair.decode.address) as link:
        yield link


@pytest.fixture(scope="session")
def next_prefill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Another prefill worker, to which nothing happens."""
    folder = tmp_path_factory.mktemp("next")
    with worker_processes(folder, {"prefill-next": "prefill"}, *ARGUMENTS, *LARGE_POOL) as (
        worker,
    ):
        yield worker


@pytest.fixture
def pair(_running_pair: Pair) -> Pair:
    """Both workers serve, whatever the test before did to them."""
    _running_pair.revive()
    return _running_pair
