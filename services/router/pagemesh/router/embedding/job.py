"""One client's prompts on their way to vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pagemesh.errors import InternalError, PagemeshError
from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.embedding.vectors import Embeddings
from pagemesh.router.migration import Migrations, Migrator
from pagemesh.router.patience import send_patiently
from pagemesh.router.placed_request import Order, PlacedRequest
from pagemesh.router.placer import Placer, Wanted
from pagemesh.router.read_ahead import UNFINISHED
from pagemesh.v1 import decode_pb2


class _Running(NamedTuple):
    """One prompt."""

    token_ids: Sequence[int]
    placed: PlacedRequest


_Event = tuple[int, decode_pb2.RequestOutput] | Turn | PagemeshError
"""Index of a prompt and the last output of its worker; that the turn has come; or why the job as a whole ends."""


class EmbeddingJob:
    """Runs once. Nothing is left on the workers, however it ends."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        order: Order,
        planner: Placer,
        migrations: Migrations,
        turn: Turn,
        normalize: bool | None = None,
    ) -> None:
        """It goes to workers when its `turn` has come; for `normalize` see `EmbedOptions`."""
        turn.waiter = self
        self._turn = turn
        self._is_queued = not turn.has_come
        self._order = order
        self._normalize = normalize
        self._prompts = [
            _Running(token_ids, PlacedRequest(self._order, index))
            for index, token_ids in enumerate(prompts)
        ]
        self._planner = planner
        self._suspects = migrations.suspects
        self._migrator = Migrator(migrations, self._submit, self._asked, self.fail)
        # One entry for each time that a worker ends a prompt, one for the turn, and one for the job.
        self._events: asyncio.Queue[_Event] = asyncio.Queue()

    def proceed(self) -> None:
        """Have `run` send the prompts to workers."""
        self._events.put_nowait(self._turn)

    def fail(self, error: PagemeshError) -> None:
        """Have `run` raise this, if it still runs."""
        self._events.put_nowait(error)

    async def run(self) -> Embeddings:
        """Embed all prompts; raises a PagemeshError when one of them cannot be embedded."""
        timer = self._order.fail_when_late(self)
        try:
            if not self._is_queued:
                await self._submit_all()
            ends: dict[int, decode_pb2.RequestOutput] = {}
            while len(ends) < len(self._prompts):
                # Ends at the latest with the deadline's entry.
                event = await self._events.get()
                if isinstance(event, PagemeshError):
                    raise event
                if isinstance(event, Turn):
                    await self._submit_all()
                    continue
                index, output = event
                running = self._prompts[index]
                if output.finish_reason in UNFINISHED:
                    self._migrator.lose(running.placed, output)
                else:
                    ends[index] = _checked(output)
                    if running.placed.placement is not None:
                        self._migrator.on_ready(running.placed)
                        self._planner.on_kv(running.placed.placement, output.kv_outcome)
                    running.placed.end()
        finally:
            timer.cancel()
            self._migrator.close()
            for running in self._prompts:
                running.placed.end()
        return Embeddings(
            vectors=[ends[index].embedding for index in range(len(self._prompts))],
            num_prompt_tokens=sum(len(running.token_ids) for running in self._prompts),
            num_cached_tokens=sum(o.prompt_usage.cached_token_count for o in ends.values()),
        )

    async def _submit_all(self) -> None:
        for index in range(len(self._prompts)):
            await send_patiently(partial(self._submit, index, frozenset()))

    async def _submit(self, index: int, excluded: frozenset[str]) -> None:
        """Place a prompt on a worker and send it there."""
        running = self._prompts[index]
        submit = self._asked(index)
        if not running.placed.is_lost:
            self._suspects.check(submit)
        wanted = Wanted(
            running.token_ids,
            max_tokens=0,
            is_prefillable=False,
            is_cacheable=True,
            cache_salt=self._order.cache_salt,
            client_session=self._order.call.session,
            excluded_worker_ids=excluded,
            is_retry=running.placed.is_lost,
            model_fingerprint=self._order.model_fingerprint,
        )
        placement = await self._planner.place(wanted)
        running.placed.send(placement, submit, partial(self._on_output, index))

    def _asked(self, index: int) -> decode_pb2.Submit:
        return decode_pb2.Submit(
            prompt_token_ids=self._prompts[index].token_ids, embed=True, normalize=self._normalize
        )

    def _on_output(self, index: int, output: decode_pb2.RequestOutput) -> None:
        if output.finish_reason not in UNFINISHED:
            self._turn.end_seat()
        self._events.put_nowait((index, output))


def _checked(output: decode_pb2.RequestOutput) -> decode_pb2.RequestOutput:
    if not output.embedding:
        raise InternalError("the worker ended the request without an embedding")
    return output
