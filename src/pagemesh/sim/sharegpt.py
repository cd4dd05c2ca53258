"""Conversations of ShareGPT's files, as turns whose prompts hold all that was said before."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.sim.settings import WorkloadConfig
from pagemesh.sim.trace import Span, Trace, TraceRequest
from pagemesh.workload.arrivals import arrival_times
from pagemesh.workload.chats import Message, read_chats

_WORD: Final = "word "
"""What generated messages are made of; as many as it takes."""


class Turn(NamedTuple):
    """A message and its answer."""

    num_message_tokens: int
    num_answer_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat."""

    turns: Sequence[Turn]
    """At least one."""
    num_system_tokens: int = 0
    """In front of the first message, of its own."""


def read_sharegpt(path: str, content: object, chars_per_token: float) -> list[Conversation]:
    """All conversations with at least one answered message; ConfigError naming the one that is wrong.

    Texts are taken to have a token for every `chars_per_token` characters.
    """
    chats = read_chats("--trace", path, content)
    found = (_conversation(messages, chars_per_token) for messages in chats)
    return [conversation for conversation in found if conversation is not None]


def write_sharegpt(
    path: str, conversations: Sequence[Conversation], chars_per_token: float
) -> None:
    """A file that `read_sharegpt` reads, with messages as long as the conversations'."""

    def text(num_tokens: int) -> str:
        num_chars = round(num_tokens * chars_per_token)
        return (_WORD * (num_chars // len(_WORD) + 1))[:num_chars]

    content = [
        {
            "id": str(number),
            "conversations": [
                message
                for turn in conversation.turns
                for message in (
                    {"from": "human", "value": text(turn.num_message_tokens)},
                    {"from": "gpt", "value": text(turn.num_answer_tokens)},
                )
            ],
        }
        for number, conversation in enumerate(conversations)
    ]
    try:
        Path(path).write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write-trace is {path!r}: {error.strerror}") from error


def converse(conversations: Sequence[Conversation], config: WorkloadConfig) -> Trace:
    """The turns of all conversations, as if one request came a second.

    All have the system prompt of `config.prefix_tokens`. Whoever has got an answer thinks for an exponential time
    before the next message, which is not scaled with the rate.
    """
    draws = random.Random(config.seed + 1)
    times = arrival_times(config.burstiness, draws)
    num_turns = sum(len(conversation.turns) for conversation in conversations)
    mean_turns = num_turns / max(1, len(conversations))
    trace: list[TraceRequest] = []
    for number, conversation in enumerate(conversations, 1):
        # Text 0 is what all of them begin with.
        shared = (Span(0, config.prefix_tokens),) if config.prefix_tokens else ()
        length = config.prefix_tokens + conversation.num_system_tokens
        begins_at, after = next(times) * mean_turns, None
        for turn in conversation.turns:
            length += turn.num_message_tokens
            think = draws.expovariate(1 / config.think_time) if config.think_time else 0.0
            arrival = begins_at if after is None else think
            prompt = (*shared, Span(number, length))
            trace.append(TraceRequest(arrival, prompt, turn.num_answer_tokens, number, after))
            after = len(trace) - 1
            length += turn.num_answer_tokens
    return trace


def _conversation(messages: Sequence[Message], chars_per_token: float) -> Conversation | None:
    system = asked = 0
    turns: list[Turn] = []
    for role, text in messages:
        num_tokens = max(1, round(len(text) / chars_per_token)) if text else 0
        if role == "system":
            system += num_tokens
        elif role == "user":
            asked += num_tokens
        # An answer to nothing was cut off from what is in front of it.
        elif asked and num_tokens:
            turns.append(Turn(asked, num_tokens))
            asked = 0
    return Conversation(turns, system) if turns else None
