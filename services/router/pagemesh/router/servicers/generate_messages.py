"""`Inference.Generate`: parts of its messages, to the generation path and back."""

from __future__ import annotations

from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.v1 import inference_pb2, types_pb2
from pagemesh.worker.messages import logprobs_to_proto

_ROLES: Final = ("system", "user", "assistant")
_FINISH_REASONS: Final = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    StopReason.STOP: types_pb2.FINISH_REASON_STOP,
    StopReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}


def generate_response(delta: ChoiceDelta, usage: Usage | None) -> inference_pb2.GenerateResponse:
    """What became known of the answer; with the token counts behind the last of it."""
    response = inference_pb2.GenerateResponse(
        text=delta.text,
        token_ids=delta.token_ids,
        finish_reason=_FINISH_REASONS[delta.stop_reason],
        logprobs=map(logprobs_to_proto, delta.logprobs),
        prompt_logprobs=map(logprobs_to_proto, delta.prompt_logprobs),
    )
    if usage is not None:
        response.usage.prompt_token_count = usage.num_prompt_tokens
        response.usage.completion_token_count = usage.num_completion_tokens
        response.usage.cached_token_count = usage.num_cached_tokens
    return response


def read_chat(chat: inference_pb2.ChatPrompt) -> list[dict[str, str]]:
    """The messages as chat templates take them; InvalidRequestError for none, or an unknown role."""
    if not chat.messages:
        raise InvalidRequestError("chat.messages is empty", param="chat.messages")
    for index, message in enumerate(chat.messages):
        if message.role not in _ROLES:
            raise InvalidRequestError(
                f"chat.messages[{index}].role is {message.role!r}, but must be system, user "
                "or assistant",
                param=f"chat.messages[{index}].role",
            )
    return [{"role": message.role, "content": message.content} for message in chat.messages]
