"""Each phase of a request, reached on purpose: what others do meanwhile, what is asked, and how it is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from leaving.client import Client
from leaving.view import View, when

PREFILL, DECODERS = "prefill-0", ("decode-0", "decode-1")
WORKERS = (PREFILL, *DECODERS)
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Stage:
    """A mesh with one slot on each worker."""

    view: View
    port: int
    model: str
    vocab_size: int
    num_prompt_tokens: int
    """Of a prompt whose prefill takes its time."""

    def body(self, num_prompt_tokens: int, **fields: Any) -> dict[str, Any]:
        """A request with a prompt that nobody had before."""
        prompt = [random.randrange(100, self.vocab_size) for _ in range(num_prompt_tokens)]
        fields = {"max_tokens": 64, "temperature": 0, "ignore_eos": True, **fields}
        return {"model": self.model, "prompt": prompt, "stream": True, **fields}

    def long(self, **fields: Any) -> Client:
        """A request whose prefill takes its time."""
        return Client(self.port, COMPLETIONS, self.body(self.num_prompt_tokens, **fields))

    def short(self, **fields: Any) -> Client:
        """A request whose answer takes its time."""
        return Client(self.port, COMPLETIONS, self.body(8, **{"max_tokens": 1500, **fields}))

    async def decoders(self) -> tuple[int, int]:
        """Requests of the decode workers that run, and that wait."""
        states = [await self.view.state(worker) for worker in DECODERS]
        return sum(s["running"] for s in states), sum(s["waiting"] for s in states)

    async def when_at_most(self, num_requests: int) -> float:
        """When no worker is seen to have more than what so many others make."""

        async def is_so() -> bool:
            prefill = (await self.view.state(PREFILL)).num_requests
            return max(sum(await self.decoders()), prefill) <= num_requests

        return await when(is_so, f"{num_requests} requests")

    async def when_one_is_free(self) -> float:
        """When one of the decode workers is seen to have no block in use."""

        async def is_so() -> bool:
            used = [(await self.view.state(worker)).num_used for worker in DECODERS]
            return not all(used)

        return await when(is_so, "a free decode worker")

    async def decoders_have(self, running: int, waiting: int) -> None:
        """Return when they have so many."""

        async def is_so() -> bool:
            return await self.decoders() == (running, waiting)

        await when(is_so, f"the decode workers with {running} running and {waiting} waiting")


@asynccontextmanager
async def queued(stage: Stage) -> AsyncIterator[Client]:
    """All slots are taken."""
    async with AsyncExitStack() as others:
        for num_seated in (1, 2):
            await others.enter_async_context(stage.short())
            await stage.decoders_have(num_seated, 0)
        async with stage.short() as client:
            await stage.decoders_have(2, 1)
            yield client


@asynccontextmanager
async def arriving(stage: Stage) -> AsyncIterator[Client]:
    """The prompt is on its way, or becomes tokens: it is longer than the context, and comes to no worker."""
    body = stage.body(1) | {"prompt": "The sea and the ships on it. " * 40_000}
    async with Client(stage.port, COMPLETIONS, body) as client:
        yield client


@asynccontextmanager
async def waiting_for_prefill(stage: Stage) -> AsyncIterator[Client]:
    """The prefill worker computes another prompt."""
    async with stage.long():
        await stage.view.when(PREFILL, lambda state: state["running"] == 1)
        async with stage.long() as client:
            await stage.view.when(PREFILL, lambda state: state["waiting"] == 1)
            yield client


@asynccontextmanager
async def in_prefill(stage: Stage) -> AsyncIterator[Client]:
    """Its first chunks are computed."""
    async with stage.long() as client:
        await stage.view.when(PREFILL, lambda state: state["running"] == 1)
        yield client


@asynccontextmanager
async def receiving_kv(stage: Stage) -> AsyncIterator[Client]:
    """Some of its KV has come."""
    num_sent = (await stage.view.state(PREFILL))["sent"]
    async with stage.long() as client:
        await stage.view.when(PREFILL, lambda state: state["sent"] >= num_sent + 4)
        yield client


@asynccontextmanager
async def waiting_for_the_first_answer(stage: Stage) -> AsyncIterator[Client]:
    """The second of two answers waits for the prompt's KV."""
    async with stage.long(n=2) as client:
        await stage.decoders_have(0, 2)
        yield client


@asynccontextmanager
async def decoding(stage: Stage) -> AsyncIterator[Client]:
    """Some tokens have come."""
    async with stage.short() as client:
        await client.read_until("data: ", 4)
        yield client


@asynccontextmanager
async def finishing(stage: Stage) -> AsyncIterator[Client]:
    """The last token has come, and the end of the stream is not read."""
    async with stage.short(max_tokens=4) as client:
        await client.read_until('"finish_reason":"length"')
        yield client


_numbers = itertools.count()


@asynccontextmanager
async def compiling(stage: Stage) -> AsyncIterator[Client]:
    """Its grammar, which nobody asked for before, is compiled."""
    number = next(_numbers)
    text = {"type": "string", "pattern": "^[a-z]{1,9}$"}
    properties = {f"f{number}_{index}": text for index in range(500)}
    forms = {"structured_outputs": {"json": {"type": "object", "properties": properties}}}
    async with stage.short(**forms) as client:
        await stage.decoders_have(0, 1)
        yield client


NUM_OTHERS = {"queued": 2, "waiting for prefill": 1}
"""That have to be there for a phase, by its name."""

PHASES = {
    "queued": queued,
    "arriving and tokenized": arriving,
    "waiting for its grammar": compiling,
    "waiting for prefill": waiting_for_prefill,
    "in prefill": in_prefill,
    "receiving KV": receiving_kv,
    "waiting for the first answer's KV": waiting_for_the_first_answer,
    "decoding": decoding,
    "finishing": finishing,
}
"""By the name that figures have."""
