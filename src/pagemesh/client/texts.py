"""From texts to embed and to compare to the messages of `Inference`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pagemesh.client.fields import check_names, put, told_as
from pagemesh.v1 import inference_pb2


class TextSettings(TypedDict, total=False):
    """What comparing texts can be told."""

    model: str
    """Served name; needed only where the mesh serves several models."""

    timeout: float
    """Seconds to wait; 600 by default."""


class EmbedSettings(TextSettings, total=False):
    """What embedding can be told."""

    dimensions: int
    """Length of the vectors, where the model was trained for that."""

    cache_salt: str
    """Only requests of the same tenant with the same salt share cached KV."""


Inputs = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""One or several texts, or the same as token ids."""


def embed_request(inputs: Inputs, settings: EmbedSettings) -> inference_pb2.EmbedRequest:
    """The message; InvalidRequestError for numbers that it cannot hold, and for texts mixed with ids."""
    check_names(settings, EmbedSettings)
    request = inference_pb2.EmbedRequest()
    for name in ("model", "cache_salt", "dimensions"):
        if name in settings:
            put(request, name, settings[name])
    with told_as("texts", inputs):
        for each in [inputs] if isinstance(inputs, str) or _are_ids(inputs) else inputs:
            if isinstance(each, str):
                request.texts.append(each)
            else:
                request.token_ids.add(ids=each)
    return request


def score_request(
    first: str | Sequence[str], second: str | Sequence[str], settings: TextSettings
) -> inference_pb2.ScoreRequest:
    """The message for how alike texts are."""
    check_names(settings, TextSettings)
    request = inference_pb2.ScoreRequest()
    put(request, "model", settings.get("model", ""))
    put(request, "first_texts", [first] if isinstance(first, str) else first, "first")
    put(request, "second_texts", [second] if isinstance(second, str) else second, "second")
    return request


def rerank_request(
    query: str, documents: Sequence[str], top_n: int, settings: TextSettings
) -> inference_pb2.RerankRequest:
    """The message for documents in order."""
    check_names(settings, TextSettings)
    request = inference_pb2.RerankRequest()
    put(request, "model", settings.get("model", ""))
    put(request, "query", query)
    put(request, "documents", documents)
    put(request, "top_count", top_n, "top_n")
    return request


def _are_ids(inputs: Sequence[object]) -> bool:
    return bool(inputs) and isinstance(inputs[0], int)
