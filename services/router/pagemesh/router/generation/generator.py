"""Starts generations: the entry to the generation path for every service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.generation.generation import Generation
from pagemesh.router.generation.generation_metrics import GenerationMetrics
from pagemesh.router.generation.instrumented import InstrumentedGeneration
from pagemesh.router.generation.interface import RunningGeneration
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.in_progress import InProgress
from pagemesh.router.migration import Migrations
from pagemesh.router.placer import Placer
from pagemesh.router.tenants.caller import current_caller
from pagemesh.telemetry.metrics import Metrics
from pagemesh.tokenizer.tokenizer import Tokenizer


class Generator:
    """Runs requests for one model."""

    def __init__(
        self,
        model_name: str,
        planner: Placer,
        tokenizer: Tokenizer,
        metrics: Metrics,
        in_progress: InProgress,
        migrations: Migrations,
        stream_interval: int,
        dispatch: Dispatch,
    ) -> None:
        self._planner = planner
        self._dispatch = dispatch
        self._tokenizer = tokenizer
        self._metrics = GenerationMetrics(metrics, model_name)
        self._migrations = migrations
        self._in_progress = in_progress
        self._stream_interval = stream_interval

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[InstrumentedGeneration]:
        """A generation whose workers are told to stop when the block is left, whatever happened.

        Its tenant is charged for what was used; RateLimitError when it may not use so much, OverloadedError when
        its turn would come too late.
        """
        num_answers = len(request.choices) // request.num_prompts
        lengths = [len(choice.prompt_token_ids) for choice in request.choices[::num_answers]]
        most = [choice.sampling.max_tokens for choice in request.choices]
        turns = self._dispatch.turn(request.call, request.priority, lengths, most)
        tokens = current_caller().allowance.tokens(request.num_reserved_tokens)
        with tokens as tally, turns as turn:
            inner = Generation(
                request,
                self._planner,
                self._tokenizer,
                self._migrations,
                self._stream_interval,
                turn,
            )
            generation = InstrumentedGeneration(inner, request, turn, self._metrics)
            with self._in_progress.hold(inner):
                try:
                    yield generation
                finally:
                    generation.close()
                    tally.num_used = _num_used(generation)
                    turn.num_used_tokens = tally.num_used - generation.usage().num_cached_tokens


def _num_used(generation: RunningGeneration) -> int:
    """Tokens that a request is charged; none when it never came to a worker."""
    if generation.explanation is None:
        return 0
    usage = generation.usage()
    return usage.num_prompt_tokens + usage.num_completion_tokens
