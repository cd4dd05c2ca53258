"""Runs one client's request on the workers, from submission to the last delta."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from pagemesh.errors import PagemeshError
from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.generation.events import Events
from pagemesh.router.generation.idle import IdleClock
from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, Idle, Usage
from pagemesh.router.generation.running_choice import RunningChoice
from pagemesh.router.migration import Migrations, Migrator
from pagemesh.router.patience import send_patiently
from pagemesh.router.placed_request import Order
from pagemesh.router.placer import Placement, Placer
from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.read_ahead import UNFINISHED
from pagemesh.router.route_header import Explanation
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.v1 import decode_pb2

FIRST_IDLE_S: Final = 1.0
"""Silence after which a client is told for the first time that its request is alive."""

IDLE_S: Final = 10.0
"""Silence between two signs of life after that; proxies usually close after 30 s or more."""


class Generation:
    """One request in progress. Iterate `deltas` once, then `close`, whatever happened."""

    def __init__(
        self,
        request: GenerationRequest,
        planner: Placer,
        tokenizer: Tokenizer,
        migrations: Migrations,
        stream_interval: int,
        turn: Turn,
    ) -> None:
        """The request's tokens are told `stream_interval` at a time, or more if the request says so.

        It goes to workers when its `turn` has come.
        """
        self._request = request
        self._turn = turn
        self._is_queued = not turn.has_come
        turn.waiter = self
        self._planner = planner
        order = Order(
            request.call,
            turn.worker_priority,
            len(request.choices),
            request.cache_salt,
            request.form_field,
        )
        self._choices = [
            RunningChoice(index, tokenizer, request, order) for index in range(len(request.choices))
        ]
        self._events = Events(max(stream_interval, request.stream_interval))
        self._suspects = migrations.suspects
        self._migrator = Migrator(
            migrations, self._submit, lambda index: self._choices[index].asked(), self.fail
        )
        self._explanation: Explanation | None = None
        self._idle = IdleClock(self._report_idle, FIRST_IDLE_S, IDLE_S)
        self._expiry = order.fail_when_late(self)

    async def deltas(self) -> AsyncGenerator[ChoiceDelta | Idle, None]:
        """What becomes known, in order; ends after the last choice's last delta.

        Raises a PagemeshError when the request as a whole fails.
        """
        if not self._is_queued:
            await self._submit_all()
        num_open = len(self._choices)
        while num_open:
            # Ends at the latest with the deadline's entry.
            event = await self._events.get()
            if isinstance(event, PagemeshError):
                raise event
            if isinstance(event, Idle):
                yield event
                continue
            if isinstance(event, Turn):
                await self._submit_all()
                continue
            delta = self._read(*event)
            if delta is None:
                continue
            self._idle.sign()
            num_open -= delta.stop_reason is not None
            yield delta

    def proceed(self) -> None:
        """Have `deltas` send it to workers."""
        self._events.put(self._turn)

    def fail(self, error: PagemeshError) -> None:
        """Have `deltas` raise this after what is already known."""
        self._events.put(error)

    def close(self) -> None:
        """Cancel what still runs and give everything back. Idempotent."""
        self._idle.close()
        self._expiry.cancel()
        self._migrator.close()
        for running in self._choices:
            running.placed.end()

    def usage(self) -> Usage:
        """Token counts so far."""
        num_answers = len(self._choices) // self._request.num_prompts
        prompts = self._choices[::num_answers]
        return Usage(
            num_prompt_tokens=sum(len(p.choice.prompt_token_ids) for p in prompts),
            num_completion_tokens=sum(c.num_tokens for c in self._choices),
            num_cached_tokens=sum(p.num_cached_tokens for p in prompts),
        )

    @property
    def explanation(self) -> Explanation | None:
        """Why the first prompt went where it went last; None as long as it went nowhere."""
        return self._explanation

    def _read(self, index: int, output: decode_pb2.RequestOutput) -> ChoiceDelta | None:
        """One output of a worker; None when it has nothing for the client."""
        running = self._choices[index]
        placement = running.placed.placement
        if placement is None:
            # A stop string ended it here; the worker sent this before it was told.
            return None
        if output.finish_reason in UNFINISHED:
            # Tokens that came with it are made again, the same ones.
            running.note_loss()
            self._migrator.lose(running.placed, output)
            return None
        delta = running.take(output)
        if output.HasField("kv_outcome"):
            self._planner.on_kv(placement, output.kv_outcome)
            self._migrator.on_ready(running.placed)
        if delta.stop_reason is not None:
            running.placed.end()
            if not output.finish_reason:
                self._turn.end_seat()
            self._planner.on_answer(running.num_tokens)
        return delta

    async def _submit_all(self) -> None:
        for index in range(len(self._choices)):
            await send_patiently(partial(self._submit, index, frozenset()))

    async def _submit(self, index: int, excluded: frozenset[str]) -> None:
        """Place a choice on a worker and send it there, with the tokens that it has already."""
        running = self._choices[index]
        submit = running.submission()
        if not running.placed.is_lost:
            self._suspects.check(submit)
        placement, leader_handle = await self._place(running, excluded)
        if index == 0:
            query = placement.query
            lookup = Lookup.SKIPPED if query is None else query.lookup
            self._explanation = Explanation(placement.decision, lookup)
        submit.fork_of_handle = leader_handle
        running.placed.send(placement, submit, partial(self._on_output, index))

    async def _place(
        self, running: RunningChoice, excluded: frozenset[str]
    ) -> tuple[Placement, int]:
        """Where a choice goes, and the handle there of another one with the same prompt, or 0.

        The answers to one prompt go where the first of them runs, and share its KV. Those that a worker hands
        over have KV of their own there, which is fetched for each.
        """
        num_answers = len(self._choices) // self._request.num_prompts
        index = running.placed.index
        leader = self._choices[index - index % num_answers]
        beside = leader.placed.placement
        if (
            leader is not running
            and running.placed.left_worker is None
            and beside is not None
            and beside.session.is_live
            and beside.route.decode.worker_id not in excluded
            and running.can_run_beside(beside)
        ):
            return self._planner.place_beside(beside), leader.placed.handle
        placement = await self._planner.place(running.wanted(excluded))
        # The first answer counts for the prompt, once, wherever the others have to go.
        counts = leader is running and not running.is_resumed
        return (placement if counts else placement._replace(query=None)), 0

    def _on_output(self, index: int, output: decode_pb2.RequestOutput) -> None:
        if output.finish_reason and output.finish_reason not in UNFINISHED:
            # However slow the client is, its worker has room for another one.
            self._turn.end_seat()
        self._events.put_output(index, output)

    def _report_idle(self) -> None:
        self._events.put(Idle.IDLE)
