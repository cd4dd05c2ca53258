"""What became known about one answer of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from pagemesh.router.generation.request import StopReason
from pagemesh.router.parsers.interface import ToolCallDelta
from pagemesh.sampling.logprobs import TokenLogprobs


# Not frozen, as `ChoiceDelta`.
@dataclass(slots=True)
class ChatDelta:
    """A piece of one choice, taken apart; nobody changes it."""

    index: int
    """Of the choice in the request."""

    content: str = ""
    """New text for the user."""

    reasoning: str = ""
    """New thoughts."""

    tool_calls: tuple[ToolCallDelta, ...] = ()
    """What became known of calls; at most one for each."""

    token_ids: tuple[int, ...] = ()
    """New ids, whatever they became."""

    stop_reason: StopReason | None = None
    """Set in the last delta of a choice."""

    stop_string: str | None = None
    """With the stop reason: which string it was, if one of them ended the choice."""

    stop_token_id: int | None = None
    """With the stop reason: which of the request's `stop_token_ids` it was, if it was one."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, when the choice asks for them."""

    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """With the first token, when the choice asks for them: of each prompt token but the first."""

    cuts_call: bool = False
    """With the stop reason: whether it came in the middle of a call."""

    content_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens of `content`, when the choice asks for them: neither of thoughts, nor of what calls tools."""
