"""Prompts in the forms that users have them in, to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from pagemesh.errors import InvalidRequestError
from pagemesh.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`; the last may have its text too."""

Message = Mapping[str, Any]
"""One message of a conversation: `role`, `content`, and whatever else the chat template reads."""

Conversation = Sequence[Message]


class EncodedPrompt(NamedTuple):
    """A prompt as the engine needs it."""

    text: str | None
    token_ids: tuple[int, ...]


def read_prompts(prompts: Prompt | Sequence[Prompt], tokenizer: Tokenizer) -> list[EncodedPrompt]:
    """One or several prompts as token ids; InvalidRequestError naming the first that is none."""
    listed = [_read(prompt, f"prompts[{i}]") for i, prompt in enumerate(_as_list(prompts))]
    texts = [prompt for prompt in listed if isinstance(prompt, str)]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=True))
    return [
        EncodedPrompt(prompt, tuple(next(encoded))) if isinstance(prompt, str) else prompt
        for prompt in listed
    ]


def read_conversations(
    messages: Conversation | Sequence[Conversation], tokenizer: Tokenizer
) -> list[EncodedPrompt]:
    """One or several conversations, rendered by the chat template, as token ids."""
    several = bool(messages) and not isinstance(messages[0], Mapping)
    conversations = cast("Sequence[Conversation]", messages if several else [messages])
    texts = []
    for index, conversation in enumerate(conversations):
        try:
            texts.append(tokenizer.chat_template.render(conversation))
        except InvalidRequestError as error:
            raise at(f"messages[{index}]" if several else "messages", error) from error
    # The template writes the special tokens itself.
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [EncodedPrompt(text, tuple(ids)) for text, ids in zip(texts, encoded, strict=True)]


def at(place: str, error: InvalidRequestError) -> InvalidRequestError:
    """The same error, saying which prompt it is about."""
    return type(error)(f"{place}: {error.message}", reason=error.reason, param=place)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(
            f"prompts is of type {type(prompts).__name__}, but must be a prompt or a list of them",
            param="prompts",
        )
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast("Sequence[int]", prompts)]
    return cast("Sequence[Prompt]", prompts)


def _read(prompt: Prompt, place: str) -> str | EncodedPrompt:
    """A text that is still to be tokenized, or a prompt of ids."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Mapping):
        return EncodedPrompt(None, _token_ids(prompt, place))
    unknown = set(prompt) - {"prompt", "prompt_token_ids"}
    if unknown or not prompt:
        what = ", ".join(sorted(map(repr, unknown))) or "nothing"
        raise InvalidRequestError(
            f"{place} has {what}, but must have 'prompt' or 'prompt_token_ids'", param=place
        )
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"{place}['prompt'] is {text!r}, but must be text", param=place)
    if token_ids is None:
        return text or ""
    return EncodedPrompt(text, _token_ids(token_ids, place))


def _token_ids(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidRequestError(
            f"{place} is of type {type(value).__name__}, but must be text or token ids", param=place
        )
    for token_id in value:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequestError(
                f"{place} has the token id {token_id!r}, but ids are integers", param=place
            )
    return tuple(value)
