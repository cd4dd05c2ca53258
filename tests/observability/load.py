"""Requests of every kind that moves some metric, to a mesh through a gateway."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL
from tests.support.late_imports import openai

_DEADLINE_S = 60.0
_WORDS = ("apple", "river", "stone", "cloud", "seven", "green", "house", "music", "north", "paper")


class Load:
    """Clients of one gateway."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._draws = random.Random(0)
        self._client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_DEADLINE_S
        )

    def close(self) -> None:
        self._client.close()

    def metrics(self) -> str:
        """The page that the gateway passes on."""
        return httpx.get(f"{self._url}/metrics", timeout=_DEADLINE_S).text

    def run(self) -> None:
        """One request of each kind, some twice."""
        long = self._text(60)
        for _ in range(2):
            # The second finds the first's prefix.
            self._chat(long)
        self._chat("Hello", n=2)
        self._streamed(self._text(40))
        self._given_up(self._text(30))
        self._structured()
        self._refused()

    def _text(self, num_words: int) -> str:
        return " ".join(self._draws.choice(_WORDS) for _ in range(num_words))

    def _chat(self, text: str, **settings: Any) -> None:
        messages: Any = [{"role": "user", "content": text}]
        answer = self._client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=12,
            extra_body={"ignore_eos": True},
            **settings,
        )
        assert answer.usage is not None and answer.usage.completion_tokens

    def _streamed(self, text: str) -> None:
        stream = self._client.completions.create(
            model=MODEL, prompt=text, max_tokens=12, stream=True, extra_body={"ignore_eos": True}
        )
        assert len(list(stream)) > 1

    def _given_up(self, text: str) -> None:
        stream = self._client.completions.create(
            model=MODEL, prompt=text, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()

    def _structured(self) -> None:
        self._client.completions.create(
            model=MODEL,
            prompt="Is it? ",
            max_tokens=8,
            extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
        )

    def _refused(self) -> None:
        with pytest.raises(openai.NotFoundError):
            self._client.completions.create(model="nobody", prompt="Hello")
        with pytest.raises(openai.BadRequestError):
            self._client.completions.create(model=MODEL, prompt="Hello", max_tokens=10**7)
        assert httpx.get(f"{self._url}/odd", timeout=_DEADLINE_S).status_code == 404

    def odd(self, number: int) -> None:
        """What clients may send that is never the same: none of it may become a label."""
        word = f"odd-{number}"
        headers = {
            "authorization": f"Bearer sk-{word}",
            "x-request-id": word,
            "user-agent": word,
            "traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01",
        }
        with httpx.Client(base_url=self._url, headers=headers, timeout=_DEADLINE_S) as client:
            client.post("/v1/completions", json={"model": word, "prompt": word})
            client.post(
                "/v1/completions",
                json={
                    "model": MODEL,
                    "prompt": word,
                    "max_tokens": 2,
                    "user": word,
                    "cache_salt": word,
                },
            )
            client.get(f"/{word}")
            client.get(f"/v1/models/{word}")
            client.request(f"ODD{number}", "/v1/models")
