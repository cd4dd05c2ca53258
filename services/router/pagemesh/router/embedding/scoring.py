"""How alike texts are, by the angle between their embeddings.

Models that judge pairs of texts themselves (cross-encoders) are none that pagemesh runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import EmbedOptions, Input, PromptEmbedder
from pagemesh.router.generation.request import Usage


class Texts(NamedTuple):
    """Some texts, and what their field is called in the request."""

    field: str
    texts: Sequence[Input]


class Scores(NamedTuple):
    """Of pairs of texts."""

    values: list[float]
    """Cosines of the angles between them; 0 where a vector has no direction."""

    usage: Usage
    """Of all texts."""

    def order(self, num_best: int) -> list[int]:
        """Indexes of the best so many, or of all with 0, the best first; equal ones stay in their own order."""
        order = sorted(range(len(self.values)), key=lambda index: -self.values[index])
        return order[: num_best or None]


async def score(
    embedder: PromptEmbedder, first: Texts, second: Texts, call: Call, options: EmbedOptions
) -> Scores:
    """Of each of the second texts and its partner; the only one of the first is everybody's.

    Raises InvalidRequestError naming the field when the numbers do not fit, and what the embedder raises.
    """
    if len(first.texts) not in (1, len(second.texts)):
        raise InvalidRequestError(
            f"{first.field} has {len(first.texts)} entries and {second.field} has {len(second.texts)}: there "
            f"must be as many, or one in {first.field}",
            param=first.field,
        )
    left = await embedder.embed(first.texts, first.field, call, options)
    right = await embedder.embed(second.texts, second.field, call, options)
    partners = left.vectors * (len(right.vectors) // len(left.vectors))
    usage = Usage(
        left.num_prompt_tokens + right.num_prompt_tokens,
        0,
        left.num_cached_tokens + right.num_cached_tokens,
    )
    return Scores(list(map(_cosine, partners, right.vectors)), usage)


def _cosine(one: bytes, other: bytes) -> float:
    first, second = (np.frombuffer(each, "<f4").astype(np.float64) for each in (one, other))
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0
