"""A Redis is named so that no other database than the one meant is used."""

from __future__ import annotations

import pytest

from pagemesh.config import KvStoreConfig
from pagemesh.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "memory",
        "redis://host",
        "redis://host:6379/",
        "redis://user:p%2Fw@host:6379/15",
        "rediss://[::1]:6380/0",
        "unix:///run/valkey.sock?db=1",
    ],
)
def test_servers_and_databases_by_number_are_taken(url: str) -> None:
    assert KvStoreConfig(index=url).index == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nowhere", "nowhere"),
        ("http://host:6379/0", "http://host:6379/0"),
        ("redis://host:6379/abc", "redis://host:6379/abc"),
        ("redis://host:6379/1x", "redis://host:6379/1x"),
        ("redis://user:secret@host:abc/0", "redis://host:abc/0"),
        ("redis://user:sec/ret@host:6379/0", "redis://host:6379/0"),
        ("unix://run/valkey.sock", "unix://run/valkey.sock"),
    ],
)
def test_what_could_mean_another_database_is_refused_without_its_password(
    url: str, shown: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        KvStoreConfig(index=url)
    message = caught.value.message
    assert message.startswith(f"--index is {shown!r}, but must be memory, redis://host:port/db")
    assert "secret" not in message and "ret@" not in message
