"""The nouns of the embedding path: what is asked for, and what comes back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from pagemesh.router.call import Call

MAX_INPUTS: Final = 2048
"""Most prompts in one request, as in OpenAI's API."""

Input = str | list[int]
"""A text, or token ids that are used as they are."""


class EmbedOptions(NamedTuple):
    """How a request's prompts are embedded."""

    priority: int = 0
    """Lower runs first."""

    cache_salt: str = ""
    """Only requests of the same tenant with the same salt share cached KV."""

    normalize: bool | None = None
    """Whether vectors are scaled to a length of 1; None as the model wants."""


class Embeddings(NamedTuple):
    """What came of a request."""

    vectors: list[bytes]
    """One for each prompt: float32, little-endian."""

    num_prompt_tokens: int

    num_cached_tokens: int
    """Prompt tokens whose KV nobody computed for the request: it came out of a prefix cache."""


class PromptEmbedder(Protocol):
    """Makes vectors of prompts."""

    async def embed(
        self,
        inputs: Sequence[Input],
        field: str,
        call: Call,
        options: EmbedOptions,
    ) -> Embeddings:
        """Vectors of the inputs, in their order.

        Raises InvalidRequestError naming `field` for an input that cannot be embedded, and whatever
        else the workers refuse or fail with: then none is embedded.
        """
        ...


def unpack(vector: bytes) -> tuple[float, ...]:
    """The components of a vector."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def pack(vector: Sequence[float]) -> bytes:
    """A vector from its components."""
    return struct.pack(f"<{len(vector)}f", *vector)
