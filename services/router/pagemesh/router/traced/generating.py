"""What spans are told of generations and embeddings: what was asked for, and how many tokens came of it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span

from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import Embeddings, EmbedOptions, Input, PromptEmbedder
from pagemesh.router.generation.interface import RunningGeneration, TextGenerator
from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, Idle, Usage
from pagemesh.router.route_header import Explanation
from pagemesh.router.traced.recorded import name_after
from pagemesh.telemetry import span_names as names


class TracedGenerator:
    """A `TextGenerator` that the present span is told of."""

    def __init__(self, inner: TextGenerator, model_name: str) -> None:
        self._inner = inner
        self._model_name = model_name

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[RunningGeneration]:
        span = trace.get_current_span()
        sampling = request.choices[0].sampling
        name_after(span, self._model_name)
        span.set_attributes(
            {
                names.REQUEST_MODEL: self._model_name,
                names.REQUEST_ID: request.call.request_id,
                names.CHOICE_COUNT: len(request.choices) // request.num_prompts,
                names.MAX_TOKENS: sampling.max_tokens,
                names.TEMPERATURE: sampling.temperature,
                names.TOP_P: sampling.top_p,
            }
        )
        with self._inner.start(request) as inner:
            generation = _TracedGeneration(inner, span, len(request.choices))
            try:
                yield generation
            finally:
                generation.tell()


class _TracedGeneration:
    """Implements `RunningGeneration`."""

    def __init__(self, inner: RunningGeneration, span: Span, num_choices: int) -> None:
        self._inner = inner
        self._span = span
        self._started_at = time.monotonic()
        self._has_tokens = False
        self._reasons = [""] * num_choices

    async def deltas(self) -> AsyncGenerator[ChoiceDelta | Idle, None]:
        """As the inner generation's."""
        async with aclosing(self._inner.deltas()) as deltas:
            async for delta in deltas:
                if isinstance(delta, ChoiceDelta):
                    self._note(delta)
                yield delta

    def usage(self) -> Usage:
        """As the inner generation's."""
        return self._inner.usage()

    @property
    def explanation(self) -> Explanation | None:
        """As the inner generation's."""
        return self._inner.explanation

    @property
    def num_prompts(self) -> int:
        """As the inner generation's."""
        return self._inner.num_prompts

    def tell(self) -> None:
        """Have the span know what came of it."""
        usage = self._inner.usage()
        self._span.set_attributes(
            {
                names.INPUT_TOKENS: usage.num_prompt_tokens,
                names.OUTPUT_TOKENS: usage.num_completion_tokens,
                names.CACHED_TOKENS: usage.num_cached_tokens,
                names.FINISH_REASONS: [reason for reason in self._reasons if reason],
            }
        )

    def _note(self, delta: ChoiceDelta) -> None:
        if delta.token_ids and not self._has_tokens:
            self._has_tokens = True
            self._span.set_attribute(names.TIME_TO_FIRST_CHUNK, time.monotonic() - self._started_at)
        if delta.stop_reason is not None:
            self._reasons[delta.index] = delta.stop_reason.value


class TracedEmbedder:
    """A `PromptEmbedder` that the present span is told of."""

    def __init__(self, inner: PromptEmbedder, model_name: str) -> None:
        self._inner = inner
        self._model_name = model_name

    async def embed(
        self,
        inputs: Sequence[Input],
        field: str,
        call: Call,
        options: EmbedOptions,
    ) -> Embeddings:
        span = trace.get_current_span()
        name_after(span, self._model_name)
        span.set_attributes(
            {names.REQUEST_ID: call.request_id, names.REQUEST_MODEL: self._model_name}
        )
        embeddings = await self._inner.embed(inputs, field, call, options)
        span.set_attributes(
            {
                names.INPUT_TOKENS: embeddings.num_prompt_tokens,
                names.CACHED_TOKENS: embeddings.num_cached_tokens,
            }
        )
        return embeddings
