"""KV on its way between two simulated workers: what sender and receiver do, one small thing at a time.

Both ends act when the test says so, and know of the other only what has arrived: everything that may happen
between two messages of a real stream happens between two calls of `act` here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from pagemesh.core.request import EngineRequest
from tests.ownership.events import Route
from tests.ownership.simulated_worker import SimulatedWorker, import_lease


class Message(NamedTuple):
    """A block of KV, or the first token."""

    position: int = -1
    """Place of the block in the prompt's block table."""
    num_tokens: int = 0
    slots: Sequence[float] = ()
    first_token: int | None = None


@dataclass
class Sender:
    """The serving end of one stream: a lease that is opened by the asking and given up at the end."""

    worker: SimulatedWorker
    kind: Literal["prefill", "fetch"]
    lease: str
    spec: EngineRequest
    """What the receiver wants the KV of."""
    num_held_tokens: int
    source: Receiver | None = None
    """What fills the beginning of the prompt meanwhile."""
    wire: deque[Message] = field(default_factory=deque)
    """Sent and not read yet."""
    was_closed: bool = False
    """By the receiver, or by the network: no message goes through any more."""
    has_ended: bool = False
    """Everything was sent and the lease is given up."""
    _is_open: bool = False
    _block_ids: Sequence[int] = ()
    _num_sent_tokens: int = 0
    _token_was_sent: bool = False

    def act(self) -> bool:
        """Do one thing; False when there is nothing to do now."""
        if self.has_ended or not self.worker.is_alive:
            self.has_ended = True
            return False
        if self.was_closed:
            self._end()
            return True
        if not self._is_open:
            self._open()
            return True
        if self.kind == "prefill" and self._send_first_token():
            return True
        return self._send_block() or self._end_if_done()

    def _open(self) -> None:
        self._is_open = True
        self._num_sent_tokens = self.num_held_tokens
        if self.kind == "fetch":
            prompt = self.spec.prompt_token_ids
            self.lease, self._block_ids = self.worker.pin(prompt, self.num_held_tokens)
            return
        self.worker.submit(
            replace(
                self.spec,
                request_id=self.lease,
                await_kv=self.source is not None,
                hold_blocks=True,
                sampling=replace(self.spec.sampling, max_tokens=1),
            )
        )

    def _send_first_token(self) -> bool:
        tokens = self.worker.stepper.tokens.get(self.lease)
        if not tokens or self._token_was_sent:
            return False
        self._token_was_sent = True
        self.wire.append(Message(first_token=tokens[0]))
        return True

    def _num_ready_tokens(self) -> int:
        block_size = self.worker.stepper.info.layout.block_size
        if self.kind == "fetch":
            return self.num_held_tokens + len(self._block_ids) * block_size
        progress = self.worker.stepper.progress.get(self.lease)
        if progress is None:
            return 0
        block_ids = self.worker.stepper.exports[self.lease].block_ids
        self._block_ids = block_ids[self.num_held_tokens // block_size :]
        num_tokens = progress[-1].num_tokens
        is_whole = num_tokens == len(self.spec.prompt_token_ids)
        return num_tokens if is_whole else num_tokens // block_size * block_size

    def _send_block(self) -> bool:
        num_ready = self._num_ready_tokens()
        if num_ready <= self._num_sent_tokens:
            return False
        stepper = self.worker.stepper
        block_size = stepper.info.layout.block_size
        index = self._num_sent_tokens // block_size
        num_tokens = min(block_size, num_ready - self._num_sent_tokens)
        block_id = self._block_ids[index - self.num_held_tokens // block_size]
        self.worker.ledger.check_read([block_id], self.lease)
        slots = stepper.kv.memory[:, :, block_id].copy()
        assert (slots == slots[:1, :1]).all() or num_tokens < block_size
        self.wire.append(Message(index, num_tokens, slots[0, 0, :num_tokens, 0, 0].tolist()))
        self._num_sent_tokens += num_tokens
        return True

    def _end_if_done(self) -> bool:
        if self.kind == "prefill":
            is_whole = self._num_sent_tokens >= len(self.spec.prompt_token_ids)
            if not (is_whole and self._token_was_sent) and not self.worker.is_over(self.lease):
                return False
        self._end()
        return True

    def _end(self) -> None:
        self.has_ended = True
        if self._is_open:
            self.worker.release(self.lease)
        elif self.source is not None:
            self.source.is_over = True


class Receiver:
    """The asking end: one import, filled by one stream after the other, and given back once."""

    def __init__(
        self,
        home: SimulatedWorker,
        workers: Sequence[SimulatedWorker],
        spec: EngineRequest,
        routes: Sequence[Route],
    ) -> None:
        self.home = home
        self.spec = spec
        self.sender: Sender | None = None
        self.senders: list[Sender] = []
        self.is_over = False
        self._workers = workers  # changes when one is replaced
        self._routes = deque(routes)
        self._num_verified_tokens: int | None = None
        self._copying: Message | None = None
        self._has_token = False

    def act(self) -> bool:
        """Do one thing; False when there is nothing to do now."""
        if self.is_over or not self.home.is_alive:
            self._close()
            self.is_over = True
            return False
        grant = self.home.grant(self.spec.request_id)
        if grant is None:
            # Ended before it was granted anything: then it never will be.
            self.is_over = self.home.is_over(self.spec.request_id)
            return self.is_over
        if self._num_verified_tokens is None:
            self._num_verified_tokens = grant.num_held_tokens
        if self._copying is not None:
            # A thread that copies cannot be stopped: the lease ends behind it.
            self._write(self._copying, is_second_half=True)
            self._copying = None
            return True
        num_tokens = len(self.spec.prompt_token_ids)
        is_whole = self._num_verified_tokens == num_tokens
        if self.home.is_over(self.spec.request_id) or (is_whole and self._has_token):
            return self._finish()
        return self._receive(is_whole)

    def _receive(self, is_whole: bool) -> bool:
        sender = self.sender
        if sender is None or sender.was_closed or not sender.worker.is_alive:
            return self._ask_next() if self._routes and not is_whole else self._finish()
        if sender.wire:
            self._take(sender.wire.popleft())
            return True
        if sender.has_ended:
            self.sender = None
            return True
        return False

    def _take(self, message: Message) -> None:
        if message.first_token is not None:
            if not self._has_token:
                self._has_token = True
                self.home.first_token(self.spec.request_id, message.first_token)
            return
        self._write(message, is_second_half=False)
        self._copying = message

    def _write(self, message: Message, *, is_second_half: bool) -> None:
        stepper = self.home.stepper
        grant = stepper.grants[self.spec.request_id]
        block_id = grant.block_ids[message.position]
        self.home.ledger.check_write([block_id], import_lease(self.spec.request_id))
        values = np.array(message.slots, np.float32)[:, None, None]
        # K first, then V.
        stepper.kv.memory[:, int(is_second_half), block_id, : message.num_tokens] = values
        if is_second_half:
            assert self._num_verified_tokens is not None
            self._num_verified_tokens += message.num_tokens

    def _ask_next(self) -> bool:
        route = self._routes.popleft()
        assert self._num_verified_tokens is not None
        num_held = self._num_verified_tokens
        worker = self._workers[route.worker]
        lease = f"{self.spec.request_id}/{len(self.senders)}"
        source = None
        if route.source is not None:
            fetch = Route("fetch", route.source)
            source = Receiver(worker, self._workers, replace(self.spec, request_id=lease), [fetch])
        num_held -= num_held % self.home.stepper.info.layout.block_size
        self.sender = Sender(worker, route.kind, lease, self.spec, num_held, source)
        self.senders.append(self.sender)
        return True

    def _finish(self) -> bool:
        assert self._num_verified_tokens is not None
        self._close()
        self.is_over = True
        self.home.finish_import(self.spec.request_id, self._num_verified_tokens)
        return True

    def _close(self) -> None:
        if self.sender is not None:
            self.sender.was_closed = True
            self.sender = None
