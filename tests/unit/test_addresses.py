"""Addresses in settings: one or several, each host:port, none twice."""

from __future__ import annotations

import pytest

from pagemesh.addresses import parse_addresses
from pagemesh.config import MemberConfig, RouterConfig
from pagemesh.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:7000", ("127.0.0.1:7000",)),
        ("kvstore-0:7000,kvstore-1:7000", ("kvstore-0:7000", "kvstore-1:7000")),
        ("a:1, [::1]:65535", ("a:1", "[::1]:65535")),
    ],
)
def test_addresses_have_commas_in_between(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_addresses("--kvstore", text) == addresses


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is empty"),
        ("a:1,", "'' is empty"),
        ("a:1,b", "'b' has no port"),
        ("a:x", "'a:x' has no port between 1 and 65535"),
        ("a:0", "'a:0' has no port between 1 and 65535"),
        ("a:65536", "'a:65536' has no port between 1 and 65535"),
        ("a:²", "'a:²' has no port between 1 and 65535"),
        ("::1:7000", "'::1:7000' needs brackets around its IPv6 address"),
        ("http://a:1", "'http://a:1' needs brackets"),
        ("a b:1", "'a b:1' has no host that could be one"),
    ],
)
def test_what_is_no_address_is_named(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_addresses("--kvstore", text)
    assert refused.value.message.startswith(f"--kvstore is {text!r}, but must be host:port, or ")
    assert fault in refused.value.message


def test_an_address_that_is_there_twice_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_addresses("--kvstore", "a:1,b:1,a:1")
    assert refused.value.message == (
        "--kvstore is 'a:1,b:1,a:1', but 'a:1' must be in it only once"
    )


def test_workers_and_routers_refuse_them_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"--kvstore is 'nowhere'"):
        MemberConfig(kvstore="nowhere")
    with pytest.raises(ConfigError, match=r"--kvstore is ''"):
        RouterConfig(model=("models/demo",))
