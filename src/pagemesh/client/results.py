"""What the client gives back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pagemesh.errors import InternalError, InvalidRequestError
from pagemesh.messages import logprobs_from_proto
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.v1 import inference_pb2, types_pb2

FinishReason = Literal["stop", "length", "tool_calls"]

_FINISH_REASONS: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
    types_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    num_prompt_tokens: int
    num_completion_tokens: int

    num_cached_tokens: int
    """Prompt tokens whose KV nobody computed for the request: it came out of a prefix cache."""

    num_reasoning_tokens: int = 0
    """Of the completion: thoughts, without the marks around them."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function, or in a chunk what became known of it."""

    index: int
    """Of the call in its answer."""

    id: str
    """Names the call; in a call's first chunk, empty in the others."""

    name: str
    """The function's; as the id."""

    arguments: str
    """JSON text as the model wrote it, or its next piece."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer."""

    text: str
    """New text; may be empty while a character is incomplete."""

    token_ids: tuple[int, ...]
    """New token ids."""

    finish_reason: FinishReason | None = None
    """Set in the last chunk of an answer: a stop token or string, max_tokens, or calls of tools."""

    usage: Usage | None = None
    """Set in the last chunk of all."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when asked for."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """In the first chunk with tokens, when asked for: of each prompt token but the first."""

    index: int = 0
    """Which of several answers it belongs to."""

    reasoning: str = ""
    """New thoughts."""

    tool_calls: tuple[ToolCall, ...] = ()
    """What became known of calls; at most one piece for each."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]

    finish_reason: FinishReason
    """A stop token or string, max_tokens, or calls of tools."""

    usage: Usage
    """Of all answers together."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when asked for."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each prompt token but the first, when asked for."""

    reasoning: str = ""
    """What the model thought before."""

    tool_calls: tuple[ToolCall, ...] = ()
    """What it called."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the mesh."""

    name: str

    max_model_len: int
    """Longest prompt plus output in tokens; 0 while no decode worker is there."""

    num_decode_workers: int
    num_prefill_workers: int

    quantization: str = ""
    """How its weights are quantised, for example `awq`, `gguf` or `int4`; empty for dense ones."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What texts were embedded as."""

    vectors: tuple[tuple[float, ...], ...]
    """One for each text, in their order."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Scores:
    """How alike texts are."""

    values: tuple[float, ...]
    """Of each of the second texts and its partner, in [-1, 1]."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document in its place."""

    index: int
    """Of the document in the request."""

    score: float
    """How near it is to the query, in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents in order."""

    documents: tuple[RankedDocument, ...]
    """The nearest first."""

    usage: Usage


def scores_from_proto(response: inference_pb2.ScoreResponse) -> Scores:
    """The scores of an answer."""
    return Scores(tuple(response.scores), _usage(response.usage))


def ranking_from_proto(response: inference_pb2.RerankResponse) -> Ranking:
    """The documents of an answer."""
    documents = tuple(RankedDocument(each.index, each.score) for each in response.documents)
    return Ranking(documents, _usage(response.usage))


def _usage(usage: inference_pb2.Usage) -> Usage:
    return Usage(
        usage.prompt_token_count,
        usage.completion_token_count,
        usage.cached_token_count,
        usage.reasoning_token_count,
    )


def embeddings_from_proto(response: inference_pb2.EmbedResponse) -> Embeddings:
    """The vectors of an answer."""
    vectors = tuple(tuple(embedding.values) for embedding in response.embeddings)
    return Embeddings(vectors, _usage(response.usage))


def chunk_from_proto(response: inference_pb2.GenerateResponse) -> Chunk:
    """One message of an answer."""
    usage = _usage(response.usage) if response.HasField("usage") else None
    return Chunk(
        response.text,
        tuple(response.token_ids),
        _FINISH_REASONS.get(response.finish_reason),
        usage,
        tuple(map(logprobs_from_proto, response.logprobs)),
        tuple(map(logprobs_from_proto, response.prompt_logprobs)),
        response.choice_index,
        response.reasoning,
        tuple(ToolCall(c.index, c.id, c.name, c.arguments) for c in response.tool_calls),
    )


def models_from_proto(response: inference_pb2.ListModelsResponse) -> list[ModelInfo]:
    """The models of the mesh."""
    return [
        ModelInfo(
            m.name,
            m.max_model_len,
            m.decode_worker_count,
            m.prefill_worker_count,
            m.quantization,
        )
        for m in response.models
    ]


def join_chunks(chunks: Iterable[Chunk]) -> list[Completion]:
    """All chunks as whole answers; InternalError when a last one is missing."""
    read = list(chunks)
    usage = read[-1].usage if read else None
    by_index: dict[int, list[Chunk]] = {}
    for chunk in read:
        by_index.setdefault(chunk.index, []).append(chunk)
    if usage is None or any(parts[-1].finish_reason is None for parts in by_index.values()):
        raise InternalError("the answer ended without its last message")
    return [_join(by_index[index], usage) for index in sorted(by_index)]


def only_one(answers: Sequence[Completion]) -> Completion:
    """The answer; InvalidRequestError when several were asked for."""
    if len(answers) != 1:
        raise InvalidRequestError(
            f"n is {len(answers)}, but complete gives one answer; complete_all gives several",
            param="n",
        )
    return answers[0]


def _join(chunks: Sequence[Chunk], usage: Usage) -> Completion:
    reason = chunks[-1].finish_reason
    assert reason is not None
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
        finish_reason=reason,
        usage=usage,
        logprobs=tuple(each for chunk in chunks for each in chunk.logprobs),
        prompt_logprobs=tuple(each for chunk in chunks for each in chunk.prompt_logprobs),
        reasoning="".join(chunk.reasoning for chunk in chunks),
        tool_calls=_join_calls([call for chunk in chunks for call in chunk.tool_calls]),
    )


def _join_calls(pieces: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        begun = calls.get(piece.index)
        calls[piece.index] = (
            piece if begun is None else replace(begun, arguments=begun.arguments + piece.arguments)
        )
    return tuple(calls.values())
