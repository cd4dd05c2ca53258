"""What contracts with a kvstore on Redis are tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.support.valkey import Valkey, running_valkey


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[Valkey]:
    """One for all tests of a file."""
    with running_valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> Valkey:
    """It, with nothing in it."""
    with Redis.from_url(valkey_server.url) as admin:
        admin.flushall()
    return valkey_server
