"""A conversation of several turns with a mesh, through the gateway and the real client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.mesh.harness import MODEL, Mesh
from tests.support.late_imports import openai

BLOCK_SIZE = 16
DECODERS = ("decode-0", "decode-1", "decode-2")


class Turn(NamedTuple):
    """What became of one message of a user."""

    worker: str
    """Who decoded the answer."""
    num_cached: int
    num_tokens: int
    """Of prompt and answer."""


class Chat:
    """A conversation through the gateway, and so through either router."""

    def __init__(self, mesh: Mesh, client: openai.AsyncOpenAI) -> None:
        self._mesh = mesh
        self._client = client
        self._messages: list[Any] = []

    async def say(self, text: str, max_tokens: int = 40) -> Turn:
        """One turn, after which every worker is idle and all its blocks are in the index."""
        before = num_generated(self._mesh)
        self._messages.append({"role": "user", "content": text})
        answer: openai.types.chat.ChatCompletion = await self._client.chat.completions.create(
            model=MODEL, messages=self._messages, max_tokens=max_tokens, temperature=0.7, seed=3
        )
        content = answer.choices[0].message.content
        self._messages.append({"role": "assistant", "content": content})
        usage = answer.usage
        assert usage is not None and usage.prompt_tokens_details is not None
        after = num_generated(self._mesh)
        grown = {name: after[name] - before[name] for name in after}
        worker = next(name for name in after if grown[name] == usage.completion_tokens)
        return Turn(worker, usage.prompt_tokens_details.cached_tokens or 0, usage.total_tokens)


@asynccontextmanager
async def chat_on(mesh: Mesh) -> AsyncIterator[Chat]:
    async with openai.AsyncOpenAI(
        base_url=f"{mesh.url}/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        yield Chat(mesh, client)


def num_reusable(turn: Turn) -> int:
    """Tokens in full blocks: nobody needed the KV of the last one."""
    return (turn.num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def num_generated(mesh: Mesh) -> dict[str, float]:
    """Tokens of answers, by decode worker."""
    name = "vllm:generation_tokens_total"
    return {worker: mesh.metric(worker, name) for worker in DECODERS}
