"""Times that no clock can wait for are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pagemesh.config import (
    HttpLimitsConfig,
    KvStoreConfig,
    RouterConfig,
    RoutingConfig,
    ServerConfig,
)
from pagemesh.errors import ConfigError


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, 1e10])
@pytest.mark.parametrize(
    ("flag", "make"),
    [
        ("--heartbeat-interval", lambda s: KvStoreConfig(heartbeat_interval=s)),
        ("--lookup-timeout", lambda s: RoutingConfig(lookup_timeout=s)),
        (
            "--request-timeout",
            lambda s: RouterConfig(model=("m",), kvstore="a:1", request_timeout=s),
        ),
        ("--body-timeout", lambda s: HttpLimitsConfig(body_timeout=s)),
        ("--max-request-time", lambda s: HttpLimitsConfig(max_request_time=s)),
    ],
)
def test_a_time_has_both_ends(flag: str, make: Callable[[float], object], seconds: float) -> None:
    with pytest.raises(
        ConfigError, match=f"^{flag} is {seconds!r}, but must be more than 0 and at"
    ):
        make(seconds)


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_the_time_to_finish_may_be_none(seconds: float) -> None:
    assert ServerConfig(grace_period=0.0).grace_period == 0.0
    with pytest.raises(ConfigError, match=f"--grace-period is {seconds!r}, but must be between 0"):
        ServerConfig(grace_period=seconds)
