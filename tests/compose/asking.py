"""Clients of a mesh in containers: OpenAI's own, asking again and again while something happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.late_imports import openai

QUESTIONS: Final = (
    "What is the capital of France?",
    "Tell me a story about a fox.",
    "Who are you?",
    "What is 3 + 9?",
)


class CutOffError(Exception):
    """A stream ended, and nothing said why."""


def ask(client: openai.OpenAI, question: str, max_tokens: int = 64) -> str:
    """The whole answer of the likeliest tokens, streamed. CutOffError when it ends without a reason."""
    chunks = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": question}],
        stream=True,
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
    )
    text, reason, request = "", None, ""
    for chunk in chunks:
        request = chunk.id
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason
    if reason is None:
        raise CutOffError(f"{request} ends with {text[-40:]!r}")
    return text


class Traffic:
    """What several clients got until they were told to stop."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.errors: list[Exception] = []
        self._stop = threading.Event()

    def ask_on(self, client: openai.OpenAI, first: int) -> None:
        """One question after another."""
        turn = first
        while not self._stop.is_set():
            question = QUESTIONS[turn % len(QUESTIONS)]
            turn += 1
            try:
                self.answers.append((question, ask(client, question)))
            except Exception as error:
                self.errors.append(error)

    def stop(self) -> None:
        """After the answers that are on their way."""
        self._stop.set()


@contextmanager
def traffic(client: openai.OpenAI, num_clients: int = 4) -> Iterator[Traffic]:
    """Clients that ask until the block ends; all have ended behind it."""
    asked = Traffic()
    threads = [threading.Thread(target=asked.ask_on, args=(client, n)) for n in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        asked.stop()
        for thread in threads:
            thread.join(120)
