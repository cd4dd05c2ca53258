"""From texts to embed and to compare to the messages of `Inference`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pagemesh.errors import InvalidRequestError
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
    request = inference_pb2.EmbedRequest(
        model=settings.get("model", ""), cache_salt=settings.get("cache_salt", "")
    )
    listed = [inputs] if isinstance(inputs, str) or _are_ids(inputs) else inputs
    try:
        request.dimensions = settings.get("dimensions", 0)
        for each in listed:
            if isinstance(each, str):
                request.texts.append(each)
            else:
                request.token_ids.add(ids=each)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the texts cannot be sent: {error}", param="texts") from error
    return request


def _are_ids(inputs: Sequence[object]) -> bool:
    return bool(inputs) and isinstance(inputs[0], int)


def listed(texts: str | Sequence[str]) -> Sequence[str]:
    """One or several texts as several."""
    return [texts] if isinstance(texts, str) else texts
