"""One choice on its way: what its workers made of it until now, from which another one can go on.

What is told of it, ids and text, is kept here: when its worker is lost, another one is given the ids and goes on
behind them, and the text goes on where it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagemesh.messages import logprobs_from_proto, sampling_to_proto
from pagemesh.router.generation.choice_text import ChoiceText
from pagemesh.router.generation.request import Choice, ChoiceDelta, GenerationRequest, StopReason
from pagemesh.router.placed_request import Order, PlacedRequest
from pagemesh.router.placer import Placement, Wanted
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.v1 import decode_pb2, types_pb2

_STOP_REASONS: Final = {
    types_pb2.FINISH_REASON_UNSPECIFIED: None,
    types_pb2.FINISH_REASON_STOP: StopReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: StopReason.LENGTH,
}


class RunningChoice:
    """One choice of a request. `submission` and `wanted` say what its next worker is told."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, request: GenerationRequest, order: Order
    ) -> None:
        self.choice: Choice = request.choices[index]
        self.placed = PlacedRequest(order, index)
        self.num_cached_tokens = 0
        """Of the prompt, as the worker said that gave the first token."""
        self.is_resumed = False
        """Whether its present worker goes on behind tokens of another one."""
        self._num_resumed = 0
        self._order = order
        self._text = ChoiceText(index, tokenizer, request)
        self._token_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those of stop tokens and stop strings included."""
        return self._text.num_tokens

    def asked(self) -> decode_pb2.Submit:
        """What its first worker is asked for."""
        return decode_pb2.Submit(
            prompt_token_ids=self.choice.prompt_token_ids,
            sampling=sampling_to_proto(self.choice.sampling),
        )

    def submission(self) -> decode_pb2.Submit:
        """What a worker is asked for: what is missing behind the tokens that there are."""
        self._num_resumed = len(self._token_ids)
        self.is_resumed = self._num_resumed > 0
        submit = self.asked()
        if self.is_resumed:
            submit.resume_token_ids.extend(self._token_ids)
            # The prompt's came with the first token, and would forbid that KV comes from elsewhere.
            submit.sampling.ClearField("prompt_logprobs")
        return submit

    def wanted(self, excluded: frozenset[str]) -> Wanted:
        """The place that this needs, on none of these workers."""
        choice, is_resumed = self.choice, bool(self._token_ids)
        token_ids = choice.prompt_token_ids
        # Log probabilities of a prompt come from computing all of it, and in one place.
        scores_prompt = choice.sampling.prompt_logprobs is not None and not is_resumed
        # Of a suspect no other worker is to die.
        is_local = scores_prompt or self.placed.suspicion.num_fruitless > 0
        return Wanted(
            # Only what is resumed pays for a copy.
            (*token_ids, *self._token_ids) if is_resumed else token_ids,
            choice.sampling.max_tokens - len(self._token_ids),
            is_prefillable=not is_local,
            is_cacheable=not scores_prompt,
            cache_salt=self._order.cache_salt,
            client_session=self._order.call.session,
            excluded_worker_ids=excluded,
            is_retry=self.placed.is_lost,
            left_worker=self.placed.left_worker,
            model_fingerprint=self.placed.model_fingerprint,
            arithmetic=self.placed.arithmetic,
        )

    def can_run_beside(self, placement: Placement) -> bool:
        """Whether it would leave neither its model nor its class of arithmetic there."""
        facts, placed = placement.route.decode.facts, self.placed
        return placed.model_fingerprint in (None, facts.model_fingerprint) and (
            placed.arithmetic in (None, facts.arithmetic)
        )

    def note_loss(self) -> None:
        """Its present worker ends it unfinished: what that has added was computed in that one's way, by its model."""
        placement = self.placed.placement
        assert placement is not None, "it has no worker"
        if len(self._token_ids) > self._num_resumed:
            self.placed.arithmetic = placement.route.decode.facts.arithmetic
            self.placed.note_answer()

    def take(self, output: decode_pb2.RequestOutput) -> ChoiceDelta:
        """What the client is told about an output of its worker, which has not given up on it."""
        if not self.is_resumed:
            if output.HasField("prompt_usage"):
                self.num_cached_tokens = output.prompt_usage.cached_token_count
            if output.HasField("kv_outcome"):
                self.num_cached_tokens = output.kv_outcome.cached_token_count
        delta = self._text.push(tuple(output.token_ids), _STOP_REASONS[output.finish_reason])
        self._token_ids += delta.token_ids
        if not output.logprobs and not output.prompt_logprobs:
            return delta
        return replace(
            delta,
            # A stop string may have cut tokens off.
            logprobs=tuple(map(logprobs_from_proto, output.logprobs[: len(delta.token_ids)])),
            prompt_logprobs=tuple(map(logprobs_from_proto, output.prompt_logprobs)),
        )
