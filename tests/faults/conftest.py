"""A prefill and a decode worker of the demo model with a link between them, which tests have go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.pair import Pair
from tests.support.link.running import running_link
from tests.support.worker_process import worker_processes

ROLES = {"prefill-0": "prefill", "decode-0": "decode"}
# Small steps, so that a prompt's KV is a stream of many messages that takes its time.
ARGUMENTS = (
    *("--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--kv-cache-memory", "0.05"),
    # All KV is to go over the link.
    "--no-share-kv-memory",
)


@pytest.fixture(scope="session")
def _running_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("workers")
    with (
        worker_processes(folder, ROLES, *ARGUMENTS) as (prefill, decode),
        running_link(prefill.address) as link,
    ):
        yield Pair(prefill, decode, link)


@pytest.fixture
def pair(_running_pair: Pair) -> Pair:
    """Both workers serve, whatever the test before did to them."""
    _running_pair.revive()
    return _running_pair
