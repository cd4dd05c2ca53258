"""The nouns of the generation path: what is asked for, and what comes back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pagemesh.router.call import Call
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import PARAM as STRUCTURED_OUTPUTS
from pagemesh.tokenizer.detokenizer import TokenPlace
from pagemesh.tokenizer.thought_span import ThoughtMarks


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence to generate."""

    prompt_token_ids: tuple[int, ...]
    """Never empty."""

    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A client's request: one or several sequences that end together."""

    call: Call
    """The client's."""

    choices: tuple[Choice, ...]
    """By index: all answers to the first prompt, then those to the second …"""

    num_prompts: int
    """Prompts among them; the answers to one follow each other."""

    stop: tuple[str, ...]
    """Strings that end a sequence, behind its thoughts; part of its text only with `includes_stop`."""

    priority: int
    """Lower runs first."""

    is_open_ended: bool = False
    """Whether the client left the length of the answers to the context."""

    cache_salt: str = ""
    """Only requests of the same tenant with the same salt share cached KV."""

    includes_stop: bool = False
    """Whether what ended a sequence, a stop string or a stop token, is part of its text."""

    hidden_token_ids: frozenset[int] | None = None
    """Tokens that have no text; None for the tokenizer's special ones."""

    thought_marks: ThoughtMarks | None = None
    """How thoughts are marked in the text, in which stop strings are not sought; None for no thoughts."""

    stream_interval: int = 1
    """Tokens of a sequence that are told together; only its first ones and its last ones may be fewer."""

    form_field: str = STRUCTURED_OUTPUTS
    """What the client calls that which says what the answers must look like."""

    @property
    def num_reserved_tokens(self) -> int:
        """What is set aside of the tenant's tokens: prompts, and what the client said the answers may have."""
        num_answers = len(self.choices) // self.num_prompts
        num_tokens = sum(len(choice.prompt_token_ids) for choice in self.choices[::num_answers])
        if not self.is_open_ended:
            num_tokens += sum(choice.sampling.max_tokens for choice in self.choices)
        return num_tokens


class StopReason(enum.Enum):
    """Why a sequence ended as it should."""

    STOP = "stop"
    """A stop token or a stop string."""

    LENGTH = "length"
    """max_tokens or the context's end."""

    TOOL_CALLS = "tool_calls"
    """The model waits for what tools give: found by whoever takes the text apart, never by workers."""


# Frozen, it would take three times as long to make, which is done for every token.
@dataclass(slots=True)
class ChoiceDelta:
    """What became known about one sequence; nobody changes it."""

    index: int
    """Of the choice in the request."""

    text: str
    """New text; may be empty while a character or a stop string may be incomplete."""

    token_ids: tuple[int, ...]
    """New ids, those of stop tokens and stop strings included."""

    stop_reason: StopReason | None = None
    """Set in the last delta of a choice."""

    stop_string: str | None = None
    """With the stop reason: which of the request's strings it was, if it was one."""

    stop_token_id: int | None = None
    """With the stop reason: which of the choice's own `stop_token_ids` it was, if it was one."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when the choice asks for them."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """With the first token, when the choice asks for them: of each prompt token but the first."""

    places: tuple[TokenPlace, ...] = ()
    """Of each of `token_ids` in the choice's text, beside `logprobs`."""


class Idle(enum.Enum):
    """Yielded when nothing became known for a while, so that somebody can say so to the client."""

    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole request."""

    num_prompt_tokens: int
    """A prompt with several answers counts once."""

    num_completion_tokens: int

    num_cached_tokens: int
    """Prompt tokens whose KV nobody computed for the request: it came out of a prefix cache."""

    num_reasoning_tokens: int | None = None
    """Of the completion: found by whoever takes the text apart; None where nobody looks for them."""
