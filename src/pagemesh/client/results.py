"""What the client gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pagemesh.errors import InternalError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.v1 import inference_pb2, types_pb2
from pagemesh.worker.messages import logprobs_from_proto

FinishReason = Literal["stop", "length"]

_FINISH_REASONS: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    num_prompt_tokens: int
    num_completion_tokens: int

    num_cached_tokens: int
    """Prompt tokens whose KV nobody computed for the request: it came out of a prefix cache."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer."""

    text: str
    """New text; may be empty while a character is incomplete."""

    token_ids: tuple[int, ...]
    """New token ids."""

    finish_reason: FinishReason | None = None
    """Set in the last chunk: a stop token or string, or max_tokens."""

    usage: Usage | None = None
    """Set in the last chunk."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when asked for."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """In the first chunk with tokens, when asked for: of each prompt token but the first."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]

    finish_reason: FinishReason
    """A stop token or string, or max_tokens."""

    usage: Usage

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when asked for."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each prompt token but the first, when asked for."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the mesh."""

    name: str

    max_model_len: int
    """Longest prompt plus output in tokens; 0 while no decode worker is there."""

    num_decode_workers: int
    num_prefill_workers: int


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What texts were embedded as."""

    vectors: tuple[tuple[float, ...], ...]
    """One for each text, in their order."""

    usage: Usage


def embeddings_from_proto(response: inference_pb2.EmbedResponse) -> Embeddings:
    """The vectors of an answer."""
    usage = response.usage
    return Embeddings(
        tuple(tuple(embedding.values) for embedding in response.embeddings),
        Usage(usage.prompt_token_count, usage.completion_token_count, usage.cached_token_count),
    )


def chunk_from_proto(response: inference_pb2.GenerateResponse) -> Chunk:
    """One message of an answer."""
    usage = None
    if response.HasField("usage"):
        usage = Usage(
            response.usage.prompt_token_count,
            response.usage.completion_token_count,
            response.usage.cached_token_count,
        )
    return Chunk(
        response.text,
        tuple(response.token_ids),
        _FINISH_REASONS.get(response.finish_reason),
        usage,
        tuple(map(logprobs_from_proto, response.logprobs)),
        tuple(map(logprobs_from_proto, response.prompt_logprobs)),
    )


def models_from_proto(response: inference_pb2.ListModelsResponse) -> list[ModelInfo]:
    """The models of the mesh."""
    return [
        ModelInfo(m.name, m.max_model_len, m.decode_worker_count, m.prefill_worker_count)
        for m in response.models
    ]


def join_chunks(chunks: Iterable[Chunk]) -> Completion:
    """All chunks of an answer as one; InternalError when the last one is missing."""
    read = list(chunks)
    last = read[-1] if read else None
    if last is None or last.finish_reason is None or last.usage is None:
        raise InternalError("the answer ended without its last message")
    return Completion(
        text="".join(chunk.text for chunk in read),
        token_ids=tuple(token_id for chunk in read for token_id in chunk.token_ids),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=tuple(each for chunk in read for each in chunk.logprobs),
        prompt_logprobs=tuple(each for chunk in read for each in chunk.prompt_logprobs),
    )
