"""What both kinds of answer have in common: how a servicer fills one, as a whole or as events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.sampling.logprobs import TokenLogprobs, best_answers
from pagemesh.tokenizer.detokenizer import TokenPlace


@dataclass(slots=True)
class CollectedChoice:
    """A choice that is answered as a whole."""

    text: list[str] = field(default_factory=list)
    """Its pieces."""

    stop_reason: StopReason | None = None

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of its tokens, when they were asked for or the best choices are to be found."""

    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each prompt token but the first, when they were asked for."""

    token_ids: list[int] = field(default_factory=list)

    places: list[TokenPlace] = field(default_factory=list)
    """Of its tokens, beside `logprobs`."""

    stop_string: str | None = None
    """As in the choice's last delta."""

    stop_token_id: int | None = None
    """As in the choice's last delta."""

    def add(self, delta: ChoiceDelta) -> None:
        """Take what became known."""
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.places += delta.places
        self.stop_reason = delta.stop_reason
        self.stop_string = delta.stop_string
        self.stop_token_id = delta.stop_token_id

    def as_delta(self, index: int) -> ChoiceDelta:
        """All of it at once."""
        return ChoiceDelta(
            index,
            "".join(self.text),
            tuple(self.token_ids),
            self.stop_reason,
            self.stop_string,
            self.stop_token_id,
            tuple(self.logprobs),
            tuple(self.prompt_logprobs),
            tuple(self.places),
        )


def best_choices(
    choices: Sequence[CollectedChoice], num_prompts: int, n: int
) -> list[CollectedChoice]:
    """The `n` most probable answers to each prompt; all in their own order, when there are no more.

    What is known of a prompt comes with all answers to it.
    """
    num_answers = len(choices) // num_prompts
    kept: list[CollectedChoice] = []
    for start in range(0, len(choices), num_answers):
        answers = choices[start : start + num_answers]
        for answer in answers:
            # Only the first is asked to look at the prompt, which is the same for all.
            answer.prompt_logprobs = answers[0].prompt_logprobs
        if num_answers == n:
            kept += answers
            continue
        sums = [sum(score.logprob for score in answer.logprobs) for answer in answers]
        kept += [answers[index] for index in best_answers(sums, n)]
    return kept


class Ended(Protocol):
    """What says how a choice ended."""

    @property
    def stop_reason(self) -> StopReason | None:
        """Why; None before its end."""
        ...

    @property
    def stop_string(self) -> str | None:
        """Which of the request's strings it was, if it was one."""
        ...

    @property
    def stop_token_id(self) -> int | None:
        """Which of the request's tokens it was, if it was one."""
        ...


def stop_fields(choice: Ended) -> dict[str, Any]:
    """`finish_reason`, and vLLM's `stop_reason`: the string or the token that the request has for it."""
    reason = choice.stop_reason
    return {
        "finish_reason": None if reason is None else reason.value,
        "stop_reason": choice.stop_token_id if choice.stop_string is None else choice.stop_string,
    }


class Responder(Protocol):
    """Writes the answer to one request."""

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def keepalive(self) -> bytes:
        """Frames that show that the request is alive while nothing else is known."""
        ...

    def events(self, delta: ChoiceDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream, behind all choices."""
        ...

    def failure(self, error: PagemeshError) -> bytes:
        """The last frame of a stream that has begun and cannot go on."""
        ...


def usage_object(usage: Usage) -> dict[str, Any]:
    """The `usage` object."""
    found: dict[str, Any] = {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
    if usage.num_reasoning_tokens is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": usage.num_reasoning_tokens}
    return found


def usage_so_far(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """The `usage` object of a chunk: the counts of one choice, of which more may come."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }
