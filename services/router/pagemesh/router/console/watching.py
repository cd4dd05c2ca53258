"""Parts of the request path that tell the log of each request; per token they do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pagemesh.errors import PagemeshError
from pagemesh.router.call import Call
from pagemesh.router.console.request_log import (
    NO_TOKENS,
    Delivery,
    RequestLog,
    present_record,
)
from pagemesh.router.embedding.vectors import Embeddings, EmbedOptions, Input, PromptEmbedder
from pagemesh.router.generation.instrumented import InstrumentedGeneration
from pagemesh.router.generation.request import GenerationRequest, Usage
from pagemesh.router.path_metrics import path_of
from pagemesh.router.placer import Placement, Placer, Wanted
from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.route_header import Explanation
from pagemesh.v1 import types_pb2


class MeasuredGenerator(Protocol):
    """A `TextGenerator` that knows how its generations ended."""

    def start(self, request: GenerationRequest) -> AbstractContextManager[InstrumentedGeneration]:
        """See `TextGenerator`."""
        ...


class WatchedGenerator:
    """A `TextGenerator` of whose requests the log is told."""

    def __init__(self, inner: MeasuredGenerator, model_name: str, log: RequestLog) -> None:
        self._inner = inner
        self._model_name = model_name
        self._log = log

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[InstrumentedGeneration]:
        error: str | None = None
        with self._inner.start(request) as generation:
            record = self._log.begin(
                "generate",
                self._model_name,
                request.call.request_id,
                num_prompts=request.num_prompts,
                num_choices=len(request.choices),
                usage_so_far=generation.usage,
            )
            present_record.set(record)
            try:
                yield generation
            except PagemeshError as failure:
                error = failure.reason
                raise
            finally:
                present_record.set(None)
                # Ends what still runs, so that it is known how.
                generation.close()
                self._log.end(
                    record,
                    generation.end,
                    generation.usage(),
                    error,
                    generation.time_to_first_token,
                )


class WatchedEmbedder:
    """A `PromptEmbedder` of whose requests the log is told."""

    def __init__(self, inner: PromptEmbedder, model_name: str, log: RequestLog) -> None:
        self._inner = inner
        self._model_name = model_name
        self._log = log

    async def embed(
        self,
        inputs: Sequence[Input],
        field: str,
        call: Call,
        options: EmbedOptions,
    ) -> Embeddings:
        record = self._log.begin(
            "embed",
            self._model_name,
            call.request_id,
            num_prompts=len(inputs),
            num_choices=len(inputs),
        )
        present_record.set(record)
        end, error, usage = "abort", None, NO_TOKENS
        try:
            found = await self._inner.embed(inputs, field, call, options)
            end, usage = "stop", Usage(found.num_prompt_tokens, 0, found.num_cached_tokens)
        except PagemeshError as failure:
            end, error = "error", failure.reason
            raise
        finally:
            present_record.set(None)
            self._log.end(record, end, usage, error)
        return found


class WatchedPlacer:
    """A `Placer` of whose decisions the log is told."""

    def __init__(self, inner: Placer) -> None:
        self._inner = inner

    async def place(self, wanted: Wanted) -> Placement:
        placement = await self._inner.place(wanted)
        record = present_record.get()
        if record is not None:
            record.place(_explanation(placement), is_retry=wanted.is_retry)
        return placement

    def place_beside(self, placement: Placement) -> Placement:
        return self._inner.place_beside(placement)

    def on_answer(self, num_tokens: int) -> None:
        self._inner.on_answer(num_tokens)

    def on_kv(self, placement: Placement, outcome: types_pb2.KvOutcome) -> None:
        self._inner.on_kv(placement, outcome)
        record, path = present_record.get(), path_of(outcome)
        if record is not None and path is not None:
            took = outcome.time_to_ready
            seconds = took.seconds + took.nanos / 1e9
            delivery = Delivery(path, outcome.cached_token_count, seconds)
            record.deliver(_explanation(placement), delivery)


def _explanation(placement: Placement) -> Explanation:
    query = placement.query
    return Explanation(placement.decision, Lookup.SKIPPED if query is None else query.lookup)
