"""Requests that may end their workers: nobody has two of them at once, and one that did it is refused for a while.

A worker that dies takes many requests along, of which one, if any, is to blame. What is deadly about a request
shows where it begins, so those with a token from it are not. All others are suspects until a worker has given them
a token, and each worker has at most one of them: if it dies too, it was that one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from pagemesh.errors import PoisonRequestError
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.routing import POISON_REQUESTS
from pagemesh.v1 import decode_pb2

_log = structlog.get_logger(__name__)

REFUSED_S: Final = 300.0
"""Seconds for which what killed workers is not tried again."""

_MAX_REFUSED: Final = 1024
"""Requests that are remembered; the oldest are forgotten first."""


class Company:
    """The requests that are made of one request of a client; one of them at a time is a suspect anywhere."""

    has_suspect = False


class Suspicion:
    """Whether one request is to blame for its workers' deaths."""

    def __init__(self, company: Company) -> None:
        self._company = company
        self._has_answer = False
        self._leave: Callable[[], None] | None = None
        self.num_fruitless = 0
        """Workers that died under it one after the other since it last got a token, or its vector."""

    @property
    def has_company(self) -> bool:
        """Whether another one of its client's request is a suspect at the moment."""
        return self._company.has_suspect

    def on_sent(self) -> None:
        """It goes to a worker."""
        self._has_answer = False

    def on_answer(self) -> None:
        """It has a token from that, or its vector."""
        self._has_answer = True
        self.clear()

    def on_loss(self, *, is_death: bool) -> None:
        """The worker has ended it unfinished, perhaps because it died."""
        if self._has_answer:
            self.num_fruitless = 0
        elif is_death:
            self.num_fruitless += 1

    def enter(self, leave: Callable[[], None]) -> None:
        """It is a suspect where it is now; `leave` is called when it is none there any more."""
        self._leave = leave
        self._company.has_suspect = True

    def clear(self) -> None:
        """Nothing is to be feared of it where it is now, or was. Idempotent."""
        if self._leave is not None:
            self._leave()
            self._leave = None
            self._company.has_suspect = False


class Suspects:
    """Of one router. Belongs to one event loop."""

    def __init__(
        self, limit: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A request under which `limit` workers died in a row, without a token from any, is poison; 0 for never."""
        self.turn = asyncio.Lock()
        """Held by whoever looks for a worker without a suspect, until `admit`."""
        self._limit = limit
        self._clock = clock
        self._workers: Counter[str] = Counter()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._counted = metrics.counter(POISON_REQUESTS)

    def busy(self) -> frozenset[str]:
        """Workers that have a suspect."""
        return frozenset(self._workers)

    def admit(self, worker_id: str) -> Callable[[], None]:
        """A suspect went to this worker; the result is called once, when it got a token or is over."""
        self._workers[worker_id] += 1

        def leave() -> None:
            self._workers[worker_id] -= 1
            if not self._workers[worker_id]:
                del self._workers[worker_id]

        return leave

    def is_poison(self, num_fruitless: int) -> bool:
        """Whether a request is, under which so many workers died in a row."""
        return 0 < self._limit <= num_fruitless

    def refuse(self, submit: decode_pb2.Submit, num_fruitless: int) -> PoisonRequestError:
        """Remember a request that is poison; what its client is told."""
        name = _name(submit)
        self._refused.pop(name, None)
        self._refused[name] = self._clock() + REFUSED_S
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
        self._counted.labels("ended").inc()
        _log.error(
            "poison request",
            request_id=submit.request_id,
            request=name.hex(),
            num_workers=num_fruitless,
            refused_seconds=REFUSED_S,
        )
        return PoisonRequestError(
            f"{num_fruitless} workers died one after the other as they began to answer this request; it is refused"
            f" for {REFUSED_S:g} s"
        )

    def check(self, submit: decode_pb2.Submit) -> None:
        """PoisonRequestError for a request that is refused."""
        if not self._refused:
            return
        until = self._refused.get(_name(submit))
        left = 0.0 if until is None else until - self._clock()
        if left > 0:
            self._counted.labels("refused").inc()
            raise PoisonRequestError(
                f"workers died as they began to answer this request; it is refused for {left:.0f} s more"
            )


def _name(submit: decode_pb2.Submit) -> bytes:
    """Equal for requests of which workers compute the same, whoever asks; draws may differ."""
    asked = decode_pb2.Submit(
        prompt_token_ids=submit.prompt_token_ids, sampling=submit.sampling, embed=submit.embed
    )
    asked.sampling.ClearField("seed")
    return hashlib.blake2b(asked.SerializeToString(deterministic=True), digest_size=16).digest()
