"""What contracts are tested on: a Redis, a file with keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from pagemesh.config.environment import API_KEY_VARIABLE
from tests.contract.tenant_keys import key_file
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


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the keys of two tenants without limits, and no key in the environment."""
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    path = tmp_path / "keys.yaml"
    key_file(path, acme={}, other={})
    return path
