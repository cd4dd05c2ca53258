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
