"""`Inference.Generate`: from what became known of its answers to its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.messages import logprobs_to_proto
from pagemesh.router.chat.choice_reader import ChoiceReader, with_thoughts
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.v1 import inference_pb2, types_pb2

_FINISH_REASONS: Final = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    StopReason.STOP: types_pb2.FINISH_REASON_STOP,
    StopReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    StopReason.TOOL_CALLS: types_pb2.FINISH_REASON_TOOL_CALLS,
}


class TypedAnswer:
    """Makes the messages of one call."""

    def __init__(self, num_choices: int, readers: Sequence[ChoiceReader]) -> None:
        """`readers` take the answers of a conversation apart, one for each; there are none for plain prompts."""
        self._num_open = num_choices
        self._readers = readers

    @property
    def is_over(self) -> bool:
        """Whether all answers have ended."""
        return not self._num_open

    def usage(self, usage: Usage) -> inference_pb2.Usage:
        """Token counts of all answers, with those of their thoughts."""
        return usage_message(with_thoughts(usage, self._readers))

    def response(self, delta: ChoiceDelta) -> inference_pb2.GenerateResponse:
        """What became known of an answer."""
        self._num_open -= delta.stop_reason is not None
        if not self._readers:
            response = _response(delta)
            response.text = delta.text
            return response
        parts = self._readers[delta.index].push(delta)
        response = _response(parts)
        response.text, response.reasoning = parts.content, parts.reasoning
        for call in parts.tool_calls:
            response.tool_calls.add(
                index=call.index,
                id=call.call_id or "",
                name=call.name or "",
                arguments=call.arguments,
            )
        return response


def _response(delta: ChoiceDelta | ChatDelta) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        token_ids=delta.token_ids,
        finish_reason=_FINISH_REASONS[delta.stop_reason],
        logprobs=map(logprobs_to_proto, delta.logprobs),
        prompt_logprobs=map(logprobs_to_proto, delta.prompt_logprobs),
        choice_index=delta.index,
    )


def usage_message(usage: Usage) -> inference_pb2.Usage:
    """Token counts."""
    return inference_pb2.Usage(
        prompt_token_count=usage.num_prompt_tokens,
        completion_token_count=usage.num_completion_tokens,
        cached_token_count=usage.num_cached_tokens,
        reasoning_token_count=usage.num_reasoning_tokens or 0,
    )
