"""What each tenant has left at this router.

Requests and tokens come back steadily, a minute's worth in a minute; who has used nothing for a minute can use
a minute's worth at once. Where several routers share the limits, each allows its part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pagemesh.errors import RateLimitError
from pagemesh.router.tenants.bucket import Bucket
from pagemesh.router.tenants.tenant import Tenant

CONCURRENT_REQUESTS: Final = "concurrent_requests"
REQUESTS_PER_MINUTE: Final = "requests_per_minute"
TOKENS_PER_MINUTE: Final = "tokens_per_minute"
TOO_LARGE: Final = "too_large"
"""What a request asks for at once is more than its tenant may have in a minute."""
LIMIT_NAMES: Final = (CONCURRENT_REQUESTS, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, TOO_LARGE)

_CONCURRENCY_RETRY_S: Final = 1.0
"""When a running request ends is not known."""


@dataclass(slots=True)
class Tally:
    """The tokens of one request."""

    num_reserved: int
    num_used: int = 0
    """What it is charged in the end."""


class Allowance:
    """One tenant's. Knows the time from its clock alone."""

    def __init__(self, tenant: Tenant, num_routers: int, clock: Callable[[], float]) -> None:
        self._tenant = tenant
        self._num_routers = num_routers
        self._clock = clock
        self._num_running = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.change(tenant)

    @property
    def is_idle(self) -> bool:
        """Whether no request of the tenant runs."""
        return not self._num_running

    def change(self, tenant: Tenant) -> None:
        """The tenant has other limits from now on; what it used before still counts."""
        limits = tenant.limits
        self._tenant = tenant
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Let a request run until the block is left; RateLimitError when it may not."""
        limits = self._tenant.limits
        if limits.concurrent_requests is not None:
            share = max(1, limits.concurrent_requests // self._num_routers)
            if self._num_running >= share:
                raise self._refusal(
                    CONCURRENT_REQUESTS,
                    f"concurrent requests: limit {limits.concurrent_requests}{self._parted()}, all of "
                    "them running",
                    _CONCURRENCY_RETRY_S,
                )
        if self._requests is not None:
            wait = self._requests.seconds_until(1)
            if wait:
                raise self._refusal(
                    REQUESTS_PER_MINUTE,
                    f"requests per minute: limit {limits.requests_per_minute}{self._parted()}",
                    wait,
                )
            self._requests.take(1)
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    @contextmanager
    def tokens(self, num_reserved: int) -> Iterator[Tally]:
        """Reserve tokens for a request; when the block is left, it is charged what the tally says it used.

        RateLimitError when the reserved ones are not there, or never will be.
        """
        tally = Tally(num_reserved)
        bucket = self._tokens
        if bucket is None:
            yield tally
            return
        limit = self._tenant.limits.tokens_per_minute
        if limit is not None and num_reserved > limit:
            raise RateLimitError(
                f"The request is too large: it needs {num_reserved} tokens (prompt and max_tokens), but the "
                f"limit{self._whose()} is {limit} tokens per minute",
                limit=TOO_LARGE,
            )
        wait = bucket.seconds_until(num_reserved)
        if wait:
            raise self._refusal(
                TOKENS_PER_MINUTE,
                f"tokens per minute: limit {limit}{self._parted()}, {max(0, int(bucket.level))} left, "
                f"{num_reserved} requested",
                wait,
            )
        bucket.take(num_reserved)
        try:
            yield tally
        finally:
            bucket.take(tally.num_used - num_reserved)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What is left, in OpenAI's headers; of what is not limited, nothing."""
        limits = self._tenant.limits
        return (
            *_headers("requests", limits.requests_per_minute, self._requests),
            *_headers("tokens", limits.tokens_per_minute, self._tokens),
        )

    def _resized(self, bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        size = max(1.0, per_minute / self._num_routers)
        per_second = per_minute / self._num_routers / 60
        if bucket is None:
            return Bucket(size, per_second, self._clock)
        bucket.resize(size, per_second)
        return bucket

    def _refusal(self, limit: str, what: str, wait: float) -> RateLimitError:
        return RateLimitError(
            f"Rate limit reached{self._whose()} on {what}; try again in {math.ceil(wait)} s",
            retry_after=wait,
            limit=limit,
        )

    def _whose(self) -> str:
        return f" for {self._tenant.name!r}" if self._tenant.name else ""

    def _parted(self) -> str:
        return f" over {self._num_routers} routers" if self._num_routers > 1 else ""


class Allowances:
    """What each tenant has left that ever called."""

    def __init__(self, num_routers: int, clock: Callable[[], float]) -> None:
        self._num_routers = num_routers
        self._clock = clock
        self._known: dict[str, tuple[Tenant, Allowance]] = {}

    def of(self, tenant: Tenant) -> Allowance:
        """The tenant's, with the limits that it has now."""
        found = self._known.get(tenant.name)
        if found is None:
            allowance = Allowance(tenant, self._num_routers, self._clock)
        elif found[0] is tenant:
            return found[1]
        else:
            allowance = found[1]
            allowance.change(tenant)
        self._known[tenant.name] = tenant, allowance
        return allowance


def _headers(what: str, limit: int | None, bucket: Bucket | None) -> tuple[tuple[str, str], ...]:
    if limit is None or bucket is None:
        return ()
    return (
        (f"x-ratelimit-limit-{what}", str(limit)),
        (f"x-ratelimit-remaining-{what}", str(max(0, math.floor(bucket.level)))),
        (f"x-ratelimit-reset-{what}", shown_seconds(bucket.seconds_until(bucket.size))),
    )


def shown_seconds(seconds: float) -> str:
    """A time as OpenAI's headers have it: 0s, 12ms, 1.5s, 6m0s."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{round(seconds, 3):g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
