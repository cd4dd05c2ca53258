"""What each route takes and gives. That these are all routes of the services is a test."""

from __future__ import annotations

from typing import Final, NamedTuple

import pydantic

from pagemesh.router.anthropic.request import MessagesRequest, PromptFields
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.completion_request import CompletionRequest
from pagemesh.router.openai.embeddings import EmbeddingRequest
from pagemesh.router.openai.scoring import RerankRequest, ScoreRequest
from pagemesh.router.openai.tokenizing import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from pagemesh.router.responses_api.request import ResponsesRequest

Model = type[pydantic.BaseModel]


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    summary: str

    answer: str
    """Name of the answer's schema; a media type for what is no JSON."""

    requests: tuple[Model, ...] = ()
    """What the body may be; none where there is no body."""

    streams: bool = False
    """Whether the answer may be an event stream."""

    error: str = "Error"
    """Name of the schema of errors."""

    is_public: bool = False
    """Whether it is answered without a key."""

    tells_what_is_missing: bool = False
    """Whether the answer is given with 503, too."""

    is_kept: bool = False
    """Whether clients keep the answer, and hear with 304 that it is still the same."""


def _post(path: str, summary: str, answer: str, *requests: Model, **more: object) -> Operation:
    return Operation("post", path, summary, answer, requests, **more)  # type: ignore[arg-type]


def _get(path: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation("get", path, summary, answer, **more)  # type: ignore[arg-type]


_PROBE: Final = {"is_public": True, "tells_what_is_missing": True}
_FILE: Final = {"is_public": True, "is_kept": True}
_STORED: Final = "/v1/responses/{response_id}"

OPERATIONS: Final = (
    _post("/v1/chat/completions", "Chat", "ChatCompletion", ChatRequest, streams=True),
    _post("/v1/chat/completions/render", "Show a chat's prompt", "RenderedChat", ChatRequest),
    _post("/v1/completions", "Complete prompts", "Completion", CompletionRequest, streams=True),
    _post("/v1/responses", "Chat, as items", "Response", ResponsesRequest, streams=True),
    _post(
        "/v1/messages",
        "Chat, as Anthropic's clients do",
        "Message",
        MessagesRequest,
        streams=True,
        error="AnthropicError",
    ),
    _post(
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation",
        "TokenCount",
        PromptFields,
        error="AnthropicError",
    ),
    _post("/v1/embeddings", "Embed texts", "Embeddings", EmbeddingRequest),
    _post("/pooling", "Embed texts, as vLLM names it", "Pooled", EmbeddingRequest),
    *(
        _post(path, "Say how alike texts are", "Scores", ScoreRequest)
        for path in ("/v1/score", "/score")
    ),
    *(
        _post(path, "Put documents in order", "Ranking", RerankRequest)
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    _post(
        "/invocations",
        "Any of the requests above",
        "Any",
        ChatRequest,
        CompletionRequest,
        EmbeddingRequest,
        ScoreRequest,
        RerankRequest,
        streams=True,
    ),
    _post("/tokenize", "Tokenize", "Tokens", TokenizeRequest, TokenizeChatRequest),
    _post("/detokenize", "Detokenize", "Text", DetokenizeRequest),
    _get("/v1/models", "List the models", "ModelList"),
    _get("/v1/models/{model}", "One model", "Model"),
    _get(_STORED, "Refused: responses are not stored", "Error"),
    Operation("delete", _STORED, "Refused: responses are not stored", "Error"),
    _get(f"{_STORED}/input_items", "Refused: responses are not stored", "Error"),
    Operation("post", f"{_STORED}/cancel", "Refused: responses are not stored", "Error"),
    _get("/health", "Whether a request could be served", "Health", **_PROBE),
    _get("/ping", "Whether a request could be served", "Health", **_PROBE),
    Operation("post", "/ping", "Whether a request could be served", "Health", **_PROBE),  # type: ignore[arg-type]
    _get("/load", "How many requests the router has", "Load"),
    _get("/tokenizer_info", "Settings of a tokenizer", "TokenizerInfo"),
    _get("/ready", "Whether all models could be served", "Ready", **_PROBE),
    _get("/version", "Version of pagemesh", "Version", is_public=True),
    _get("/metrics", "Metrics in Prometheus' text format", "text/plain"),
    _get("/", "A page to chat and to see the mesh", "text/html", **_FILE),
    _get("/console/{asset}", "A file of the page", "*/*", **_FILE),
    _get("/mesh", "Workers, load, latencies and the latest requests", "Mesh"),
    _get("/mesh/events", "The same as events while they are read", "text/event-stream"),
    _get("/openapi.json", "This document", "Document", is_public=True),
)
