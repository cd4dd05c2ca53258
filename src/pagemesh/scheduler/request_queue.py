"""Requests in order of precedence."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from pagemesh.scheduler.request import Request

by_precedence = attrgetter("precedence")
"""Sort key of requests."""


class RequestQueue:
    """A sorted set of requests; a request's precedence never changes, so neither does its place."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """First to last in order of precedence, as they are now: the queue may change meanwhile."""
        return iter(tuple(self._requests))

    def __reversed__(self) -> Iterator[Request]:
        return iter(tuple(reversed(self._requests)))

    def add(self, request: Request) -> None:
        """Put the request at its place."""
        insort(self._requests, request, key=by_precedence)

    def remove(self, request: Request) -> None:
        """Take the request out; it must be in."""
        index = bisect_left(self._requests, request.precedence, key=by_precedence)
        assert self._requests[index] is request
        del self._requests[index]


class WaitingQueue(RequestQueue):
    """A queue of requests that wait, with sums over them: nothing of theirs changes while they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.num_pending_tokens = 0
        """Prompt tokens that are to be computed for them."""
        self.num_swapped = 0
        """Requests whose KV is in the swap space."""

    def add(self, request: Request) -> None:
        """Put the request at its place."""
        super().add(request)
        self.num_pending_tokens += _num_pending_tokens(request)
        self.num_swapped += request.num_swapped_tokens > 0

    def remove(self, request: Request) -> None:
        """Take the request out; it must be in."""
        super().remove(request)
        self.num_pending_tokens -= _num_pending_tokens(request)
        self.num_swapped -= request.num_swapped_tokens > 0

    def check_integrity(self) -> None:
        """Assert that the sums are those of the requests that are in."""
        assert self.num_pending_tokens == sum(map(_num_pending_tokens, self))
        assert self.num_swapped == sum(request.num_swapped_tokens > 0 for request in self)


def _num_pending_tokens(request: Request) -> int:
    """Of a waiting request: what it will compute, if neither an importer nor a leader brings it."""
    if request.awaits_kv:
        return 0
    if request.leader is not None and request.num_cached_tokens is None:
        # As if the leader were still there to share with; whether it will be is not known yet.
        return request.num_uncomputed_tokens - request.num_leader_tokens
    return request.num_uncomputed_tokens - request.num_swapped_tokens
