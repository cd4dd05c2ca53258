"""The requests of the soak, of all kinds, and what became of them: each has an answer that is known."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

Body = dict[str, Any]

NUM_QUESTIONS: Final = 96
DEADLINE_S: Final = 60.0
"""Of a client; whoever needs it hangs."""
CANCELLED_SHARE: Final = 0.05
SENTENCE: Final = "The mesh has a router, a prefill worker, a decode worker and a kvstore. "
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Vienna"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
KINDS: Final[tuple[Callable[[random.Random], Body], ...]] = (
    lambda draws: {"max_tokens": draws.randrange(8, 48), "temperature": 0},
    lambda draws: {"max_tokens": draws.randrange(8, 48), "temperature": 1.0},
    lambda draws: {"max_tokens": draws.randrange(8, 24), "temperature": 0.8, "n": 3},
    lambda draws: {"max_tokens": 48, "temperature": 1.0, "stop": [" the", "."]},
    lambda draws: {"max_tokens": 16, "temperature": 0.9, "logprobs": 2},
    lambda draws: {
        "max_tokens": 40,
        "temperature": 1.0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
    },
    lambda draws: {
        "max_tokens": draws.randrange(16, 64),
        "temperature": 1.1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "ignore_eos": True,
    },
    # Long prompts, some with the same beginning.
    lambda draws: {
        "prompt": SENTENCE * draws.choice((20, 40, 60)) + f"Number {draws.randrange(1000)}.",
        "max_tokens": 12,
        "temperature": 0.7,
    },
)


def make_questions(draws: random.Random) -> list[Body]:
    """Bodies of completions: as many of each kind, streamed or not."""
    questions = []
    for number in range(NUM_QUESTIONS):
        topic = draws.choice(("a story", "the capital of France", "seven animals", "the sea"))
        body = {
            "model": "demo",
            "prompt": f"Tell me about {topic}, number {draws.randrange(100)}:",
            "seed": draws.randrange(1 << 31),
        } | KINDS[number % len(KINDS)](draws)
        if draws.random() < 0.6:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        questions.append(body)
    return questions


@dataclass(slots=True)
class Reading:
    """What a client has of an answer."""

    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[str]] = field(default_factory=dict)
    """With log probabilities: of each choice, in order."""
    num_tokens: int | None = None
    longest_pause: float = 0.0
    is_over: bool = False

    def take(self, body: Body) -> None:
        """An answer, or a piece of one; raises FailedError if it says that it failed."""
        if error := body.get("error"):
            raise FailedError(str(error.get("code") or error.get("type")))
        for choice in body["choices"]:
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            if choice["finish_reason"]:
                self.finish_reasons[index] = choice["finish_reason"]
            if logprobs := choice.get("logprobs"):
                self.tokens.setdefault(index, []).extend(logprobs["tokens"])
        if usage := body.get("usage"):
            self.num_tokens = usage["completion_tokens"]

    @property
    def content(self) -> tuple[object, ...]:
        """All that must be the same each time."""
        return self.texts, self.finish_reasons, self.tokens, self.num_tokens

    def is_beginning_of(self, answer: Reading) -> bool:
        """Whether nothing that it has is wrong."""
        return all(answer.texts[i].startswith(text) for i, text in self.texts.items())


class FailedError(Exception):
    """An answer was no answer; the text is a short word for why."""


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    num_whole: int = 0
    num_cancelled: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """By kind; those that a fault in front of the workers excuses."""
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    inexcusable: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    """The longest one of each stream."""
    durations: list[float] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return (
            self.num_whole
            + self.num_cancelled
            + self.errors.total()
            + len(self.wrong)
            + len(self.hung)
            + len(self.inexcusable)
        )


class Traffic:
    """Asks questions whose answers are known, at a rate, until told to stop."""

    def __init__(
        self,
        url: str,
        questions: list[Body],
        tenants: Sequence[Mapping[str, str]],
        seed: int,
    ) -> None:
        self._url = f"{url}/v1/completions"
        self._questions = questions
        self._tenants = tenants
        self.is_excused: Callable[[float, float], bool] = lambda since, until: False
        """Whether a request between two times may have been lost with who held its connection."""
        self.cancelled_share = CANCELLED_SHARE
        self.num_running = 0
        self._draws = random.Random(seed)
        self._answers: dict[int, Reading] = {}
        self._client = httpx.AsyncClient(
            timeout=DEADLINE_S, limits=httpx.Limits(max_connections=None)
        )
        self.tally = Tally()

    async def close(self) -> None:
        await self._client.aclose()

    async def learn(self, num_at_once: int) -> float:
        """Get every answer undisturbed, twice; gives requests per second, the second time."""
        seconds = 0.0
        for _ in range(2):
            begun_at = time.monotonic()
            numbers = iter(range(len(self._questions)))

            async def learn_some(numbers: Any = numbers) -> None:
                for number in numbers:
                    reading = Reading()
                    await self._read(number, reading, None)
                    known = self._answers.setdefault(number, reading)
                    assert known.content == reading.content, (
                        self._questions[number],
                        known,
                        reading,
                    )

            await asyncio.gather(*(learn_some() for _ in range(num_at_once)))
            seconds = time.monotonic() - begun_at
        return len(self._questions) / seconds

    async def run(self, rate: float, num_at_once: int, stopping: asyncio.Event) -> None:
        """Begin so many requests a second, with so many at once at most."""
        loop, running = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        next_at = loop.time()
        while not stopping.is_set():
            # What could not begin in time is not made up for.
            next_at = max(next_at + 1.0 / rate, loop.time() - 1.0)
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            if len(running) >= num_at_once:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._ask_one())
            running.add(task)
            task.add_done_callback(running.discard)
            self.num_running = len(running)
        if running:
            await asyncio.wait(running)

    async def _ask_one(self) -> None:
        number = self._draws.randrange(len(self._questions))
        is_cancelled = self._draws.random() < self.cancelled_share
        patience = self._draws.random() * 0.4 if is_cancelled else None
        begun_at, reading = time.monotonic(), Reading()
        question = f"question {number} at {begun_at:.1f}"
        error = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._read(number, reading, patience)
        except TimeoutError:
            self.tally.hung.append(question)
            return
        except FailedError as failed:
            error = str(failed)
        except httpx.ReadTimeout:
            self.tally.hung.append(question)
            return
        except httpx.TransportError as broken:
            error = type(broken).__name__
        self._judge(question, reading, self._answers[number], error, begun_at)

    def _judge(
        self, question: str, reading: Reading, answer: Reading, error: str | None, begun_at: float
    ) -> None:
        tally = self.tally
        if not reading.is_beginning_of(answer):
            tally.wrong.append(f"{question}: {reading.texts}, not {answer.texts}")
        elif error is not None:
            if self.is_excused(begun_at, time.monotonic()):
                tally.errors[error] += 1
            else:
                tally.inexcusable.append(
                    f"{question}: {error}, after {time.monotonic() - begun_at:.1f} s"
                )
        elif not reading.is_over:
            tally.num_cancelled += 1
        elif reading.content != answer.content:
            tally.wrong.append(f"{question}: {reading.content}, not {answer.content}")
        else:
            tally.num_whole += 1
            tally.durations.append(time.monotonic() - begun_at)
            if reading.longest_pause:
                tally.pauses.append(reading.longest_pause)

    async def _read(self, number: int, reading: Reading, patience: float | None) -> None:
        """Ask, and read until it is over or patience is."""
        body = self._questions[number]
        try:
            async with (
                asyncio.timeout(patience),
                self._client.stream(
                    "POST", self._url, json=body, headers=self._tenants[number % len(self._tenants)]
                ) as answer,
            ):
                await self._read_answer(answer, reading)
        except TimeoutError:
            if patience is None:
                raise

    async def _read_answer(self, answer: httpx.Response, reading: Reading) -> None:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            last = time.monotonic()
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    reading.is_over = True
                elif line.startswith("data: "):
                    now = time.monotonic()
                    if reading.texts:
                        reading.longest_pause = max(reading.longest_pause, now - last)
                    last = now
                    reading.take(json.loads(line[6:]))
            if not reading.is_over:
                raise FailedError("the stream broke off")
        else:
            content = await answer.aread()
            try:
                reading.take(json.loads(content))
            except ValueError:
                raise FailedError(f"status {answer.status_code}") from None
            reading.is_over = True
