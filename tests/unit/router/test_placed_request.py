"""A request and its places: each is given back once, also one where it could not be submitted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.errors import UnavailableError, WorkerLostError
from pagemesh.router.call import Call
from pagemesh.router.placed_request import Order, PlacedRequest
from pagemesh.v1 import decode_pb2


class Place:
    """A placement on a session that may just have closed."""

    def __init__(self, *, is_closed: bool = False, fingerprint: str = "") -> None:
        self.num_ends = 0
        self._is_closed = is_closed
        self.route = SimpleNamespace(
            plan=None,
            decode=SimpleNamespace(
                facts=SimpleNamespace(worker_id="decode-1", model_fingerprint=fingerprint)
            ),
        )
        self.query = None
        self.flight = SimpleNamespace(end=self._end)
        self.session = SimpleNamespace(submit=self._submit, cancel=lambda handle: None)

    def _end(self) -> None:
        self.num_ends += 1

    def _submit(self, submit: decode_pb2.Submit, sink: object) -> int:
        if self._is_closed:
            raise UnavailableError("the session has closed")
        return 7


async def test_a_place_where_it_could_not_be_submitted_is_given_back() -> None:
    deadline = asyncio.get_running_loop().time() + 60
    order = Order(Call("r", INVALID_SPAN, deadline, 0), 0, 1)
    placed = PlacedRequest(order, 0)
    closed: Any = Place(is_closed=True)
    opened: Any = Place(is_closed=False)
    with pytest.raises(UnavailableError):
        placed.send(closed, decode_pb2.Submit(), lambda output: None)
    placed.send(opened, decode_pb2.Submit(), lambda output: None)
    assert (closed.num_ends, opened.num_ends, placed.handle) == (1, 0, 7)
    placed.end()
    assert (closed.num_ends, opened.num_ends) == (1, 1)


async def test_an_order_is_answered_by_one_model() -> None:
    """Both were placed before anybody had answered."""
    deadline = asyncio.get_running_loop().time() + 60
    order = Order(Call("r", INVALID_SPAN, deadline, 0), 0, 3)
    first, second, third = (PlacedRequest(order, index) for index in range(3))
    for placed, fingerprint in ((first, "old"), (second, "new"), (third, "old")):
        place: Any = Place(fingerprint=fingerprint)
        placed.send(place, decode_pb2.Submit(), lambda output: None)
    first.settle()
    assert second.model_fingerprint == "old"
    with pytest.raises(
        WorkerLostError, match="the model that began to answer is gone: worker decode-1"
    ):
        second.settle()
    third.settle()
