"""Requests of clients that are processes of their own, and what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from pagemesh.local.processes import bound_to

CLIENT: Final = Path(__file__).with_name("client.py")


@dataclass(slots=True)
class Outcome:
    """What a client got, so far or in all."""

    status: int | None = None
    text: str = ""
    num_tokens: int = 0
    """As the usage in each piece has it."""
    finish_reason: str | None = None
    error: str | None = None
    """In words: that of the answer, or of the connection."""
    is_done: bool = False
    """Whether the stream was ended by [DONE]."""
    times: list[float] = field(default_factory=list)
    """When it asked, and when each piece of text came; by time.monotonic()."""

    @property
    def is_whole(self) -> bool:
        """Whether it says of itself that nothing is missing."""
        return self.error is None and self.is_done and self.finish_reason is not None

    def longest_pause(self) -> float:
        """The longest time without a piece of text, that before the first one too."""
        return max((later - sooner for sooner, later in pairwise(self.times)), default=0.0)

    def take(self, at: float, kind: str, value: Any) -> None:
        """One line of the client's."""
        match kind:
            case "asked":
                self.times.append(at)
            case "status":
                self.status = value
            case "broken":
                self.error = self.error or value
            case "end" if not self.is_done:
                self.error = self.error or "the stream broke off"
            case "data" if value == "[DONE]":
                self.is_done = True
            case "data":
                self._read(at, json.loads(value))

    def _read(self, at: float, body: dict[str, Any]) -> None:
        if "error" in body:
            error = body["error"]
            self.error = f"{error.get('code')}: {error.get('message')}"
            return
        for choice in body.get("choices", ()):
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if choice["text"]:
                self.text += choice["text"]
                self.times.append(at)
        if usage := body.get("usage"):
            self.num_tokens = usage["completion_tokens"]


class Client:
    """One request of a client's process, which asks at once. Ended by `close`."""

    def __init__(self, address: str, body: Mapping[str, Any], entrance: Sequence[str] = ()) -> None:
        self.request_id = uuid.uuid4().hex
        self._process = subprocess.Popen(
            bound_to(
                os.getpid(),
                (*entrance, sys.executable, "-I", "-S", str(CLIENT), address, self.request_id),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(body))
        self._process.stdin.close()
        self.outcome = Outcome()
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        with self._changed:
            return self._has_ended

    def wait_for_tokens(self, count: int, deadline_s: float) -> bool:
        """Whether so many have come in time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.outcome.num_tokens >= count or self._has_ended, deadline_s
            )
            return self.outcome.num_tokens >= count

    def wait_for_end(self, deadline_s: float) -> bool:
        """Whether the client's process has ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended, deadline_s)

    def close(self) -> None:
        """Kill it. Idempotent."""
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.outcome.take(*json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def completion(prompt: str | list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A seeded completion of exactly so many tokens, streamed; never found in a cache unless it says so."""
    salt = f"{os.getpid()}-{time.monotonic_ns()}"
    return {
        "model": "demo",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0.7,
        "seed": 11,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": salt,
    } | fields
