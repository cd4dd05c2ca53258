"""Runs one client's request on the workers, from submission to the last delta."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from prometheus_client import Counter

from pagemesh.errors import PagemeshError, UnavailableError
from pagemesh.router.generation.choice_text import ChoiceText
from pagemesh.router.generation.events import Events
from pagemesh.router.generation.idle import IdleClock
from pagemesh.router.generation.request import (
    Choice,
    ChoiceDelta,
    GenerationRequest,
    Idle,
    StopReason,
    Usage,
)
from pagemesh.router.placed_request import Order, PlacedRequest
from pagemesh.router.placer import Placement, Placer, Wanted
from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.route_header import Explanation
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.messages import logprobs_from_proto, sampling_to_proto

FIRST_IDLE_S: Final = 1.0
"""Silence after which a client is told for the first time that its request is alive."""

IDLE_S: Final = 10.0
"""Silence between two signs of life after that; proxies usually close after 30 s or more."""

_STOP_REASONS: Final = {
    types_pb2.FINISH_REASON_UNSPECIFIED: None,
    types_pb2.FINISH_REASON_STOP: StopReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: StopReason.LENGTH,
}


@dataclass(slots=True)
class _Running:
    """One choice on its way."""

    choice: Choice
    text: ChoiceText
    placed: PlacedRequest
    num_cached_tokens: int = 0


class Generation:
    """One request in progress. Iterate `deltas` once, then `close`, whatever happened."""

    def __init__(
        self,
        request: GenerationRequest,
        planner: Placer,
        tokenizer: Tokenizer,
        resubmitted: Counter,
        stream_interval: int,
    ) -> None:
        """The request's tokens are told `stream_interval` at a time, or more if the request says so."""
        self._request = request
        self._planner = planner
        self._order = order = Order(
            request.call,
            request.priority,
            len(request.choices),
            resubmitted,
            request.cache_salt,
            request.form_field,
        )
        self._choices = [
            _Running(
                choice,
                ChoiceText(index, tokenizer, request, choice.sampling),
                PlacedRequest(order, index),
            )
            for index, choice in enumerate(request.choices)
        ]
        self._events = Events(max(stream_interval, request.stream_interval))
        self._explanation: Explanation | None = None
        self._idle = IdleClock(self._report_idle, FIRST_IDLE_S, IDLE_S)
        self._expiry = order.fail_when_late(self)

    async def deltas(self) -> AsyncGenerator[ChoiceDelta | Idle, None]:
        """What becomes known, in order; ends after the last choice's last delta.

        Raises a PagemeshError when the request as a whole fails.
        """
        for running in self._choices:
            await self._submit(running, frozenset())
        num_open = len(self._choices)
        while num_open:
            # Ends at the latest with the deadline's entry.
            event = await self._events.get()
            if isinstance(event, PagemeshError):
                raise event
            if isinstance(event, Idle):
                yield event
                continue
            delta = await self._read(*event)
            if delta is None:
                continue
            self._idle.sign()
            num_open -= delta.stop_reason is not None
            yield delta

    def fail(self, error: PagemeshError) -> None:
        """Have `deltas` raise this after what is already known."""
        self._events.put(error)

    def close(self) -> None:
        """Cancel what still runs and give everything back. Idempotent."""
        self._idle.close()
        self._expiry.cancel()
        for running in self._choices:
            running.placed.end()

    def usage(self) -> Usage:
        """Token counts so far."""
        num_answers = len(self._choices) // self._request.num_prompts
        prompts = self._choices[::num_answers]
        return Usage(
            num_prompt_tokens=sum(len(p.choice.prompt_token_ids) for p in prompts),
            num_completion_tokens=sum(c.text.num_tokens for c in self._choices),
            num_cached_tokens=sum(p.num_cached_tokens for p in prompts),
        )

    @property
    def explanation(self) -> Explanation | None:
        """Why the first prompt went where it went last; None as long as it went nowhere."""
        return self._explanation

    async def _read(self, index: int, output: decode_pb2.RequestOutput) -> ChoiceDelta | None:
        """One output of a worker; None when it has nothing for the client."""
        running = self._choices[index]
        placement = running.placed.placement
        if placement is None:
            # A stop string ended it here; the worker sent this before it was told.
            return None
        if output.finish_reason == types_pb2.FINISH_REASON_ERROR:
            await running.placed.recover(
                output.error,
                partial(self._submit, running),
                # Tokens that the client has read cannot be taken back.
                is_repeatable=not running.text.num_tokens,
            )
            return None
        if output.finish_reason not in _STOP_REASONS:
            raise UnavailableError("the worker cancelled the request")
        if output.HasField("prompt_usage"):
            running.num_cached_tokens = output.prompt_usage.cached_token_count
        if output.HasField("kv_outcome"):
            running.num_cached_tokens = output.kv_outcome.cached_token_count
            self._planner.on_kv(placement, output.kv_outcome)
        delta = running.text.push(tuple(output.token_ids), _STOP_REASONS[output.finish_reason])
        if delta.stop_reason is not None:
            running.placed.end()
            self._planner.on_answer(running.text.num_tokens)
        if not output.logprobs and not output.prompt_logprobs:
            return delta
        return replace(
            delta,
            # A stop string may have cut tokens off.
            logprobs=tuple(map(logprobs_from_proto, output.logprobs[: len(delta.token_ids)])),
            prompt_logprobs=tuple(map(logprobs_from_proto, output.prompt_logprobs)),
        )

    async def _submit(self, running: _Running, excluded: frozenset[str]) -> None:
        """Place a choice on a worker and send it there."""
        choice = running.choice
        submit = decode_pb2.Submit(
            prompt_token_ids=choice.prompt_token_ids, sampling=sampling_to_proto(choice.sampling)
        )
        placement, leader_handle = await self._place(running, excluded)
        if running.placed.index == 0:
            query = placement.query
            lookup = Lookup.SKIPPED if query is None else query.lookup
            self._explanation = Explanation(placement.decision, lookup)
        submit.fork_of_handle = leader_handle
        running.placed.send(
            placement, submit, partial(self._events.put_output, running.placed.index)
        )

    async def _place(self, running: _Running, excluded: frozenset[str]) -> tuple[Placement, int]:
        """Where a choice goes, and the handle there of another one with the same prompt, or 0.

        The answers to one prompt go where the first of them runs, and share its KV.
        """
        num_answers = len(self._choices) // self._request.num_prompts
        index = running.placed.index
        leader = self._choices[index - index % num_answers]
        beside = leader.placed.placement
        if (
            leader is not running
            and beside is not None
            and beside.session.is_live
            and beside.route.decode.worker_id not in excluded
        ):
            return self._planner.place_beside(beside), leader.placed.handle
        choice = running.choice
        wanted = Wanted(
            choice.prompt_token_ids,
            choice.sampling.max_tokens,
            # Log probabilities of a prompt come from computing all of it in one place.
            is_prefillable=choice.sampling.prompt_logprobs is None,
            # And all of it, as they come from computing the token in front of each.
            is_cacheable=choice.sampling.prompt_logprobs is None,
            cache_salt=self._order.cache_salt,
            client_session=self._order.call.session,
            excluded_worker_ids=excluded,
        )
        placement = await self._planner.place(wanted)
        # The first answer counts for the prompt, wherever the others have to go.
        return (placement if leader is running else placement._replace(query=None)), 0

    def _report_idle(self) -> None:
        self._events.put(Idle.IDLE)
