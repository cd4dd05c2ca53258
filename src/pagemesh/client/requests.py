"""From the client's arguments to the messages of `Inference`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

from pagemesh.client.conversation import Messages, ToolChoice, Tools, chat_prompt, set_tools
from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.v1 import inference_pb2, types_pb2
from pagemesh.worker.structured_messages import structured_to_proto

DEFAULT_TIMEOUT_S = 600.0


class Settings(TypedDict, total=False):
    """What a generation can be told; every one may be left out.

    The prompt is exactly one of the first argument, `messages` and `token_ids`.
    """

    messages: Messages
    """A conversation, rendered with the model's chat template."""

    token_ids: Sequence[int]
    """A prompt that is tokenized already."""

    model: str
    """Served name; needed only where the mesh serves several models."""

    max_tokens: int
    """Most tokens generated; as many as the context has room for when left out."""

    temperature: float
    """In [0, 2]; 0, the default, always takes the most likely token."""

    top_p: float
    """Nucleus mass in (0, 1]."""

    top_k: int
    """Number of most likely tokens kept; 0 keeps all."""

    min_p: float
    """Least probability kept, relative to the likeliest token's; in [0, 1]."""

    min_tokens: int
    """Stop tokens and stop strings are not honoured before this many tokens."""

    repetition_penalty: float
    """Above 1 makes tokens of the prompt and the answer less likely; 1 by default."""

    presence_penalty: float
    """In [-2, 2]; taken from the logits of all tokens of the answer."""

    frequency_penalty: float
    """In [-2, 2]; taken from the logit of a token for each time that it is in the answer."""

    logit_bias: Mapping[int, float]
    """Added to the logits of these token ids; each in [-100, 100]."""

    bad_words: Sequence[str]
    """Words that must not be in the answer."""

    allowed_token_ids: Sequence[int]
    """The only token ids that the answer may have."""

    structured_outputs: StructuredOutputs
    """What the answer must look like; `StructuredOutputs.of(json=…)` makes one, and the like."""

    logprobs: int
    """Likeliest tokens, at most 20, whose log probabilities come with each token's own; 0 for that alone."""

    prompt_logprobs: int
    """The same for each token of the prompt but the first."""

    seed: int
    """Makes the draws of a temperature above 0 repeatable; an unsigned 64-bit integer."""

    stop: Sequence[str]
    """At most four strings that end the answer; not part of it."""

    cache_salt: str
    """Only requests of the same tenant with the same salt share cached KV."""

    tools: Tools
    """What the model may call in a conversation, in OpenAI's form."""

    tool_choice: ToolChoice
    """How it chooses among the tools; as it likes when left out."""

    parallel_tool_calls: bool
    """Whether an answer may have several calls; it may when left out."""

    chat_template_kwargs: Mapping[str, object]
    """Further variables of the chat template."""

    continue_final_message: bool
    """Whether the answer goes on with the last message, instead of beginning a new one."""

    n: int
    """Answers to generate, at most 16; each draws with a seed of its own."""

    session_id: str
    """What the request belongs to: all of a session go to the same worker unless that is too busy."""

    timeout: float
    """Seconds that the whole answer may take; 600 by default."""


class TokenizeSettings(TypedDict, total=False):
    """What tokenizing can be told; give either a text or `messages`."""

    messages: Messages
    """A conversation, rendered with the model's chat template."""

    model: str
    """Served name; needed only where the mesh serves several models."""

    timeout: float
    """Seconds to wait."""


def generate_request(prompt: str | None, settings: Settings) -> inference_pb2.GenerateRequest:
    """The message for a generation; InvalidRequestError for settings that it cannot hold."""
    token_ids = settings.get("token_ids")
    messages = settings.get("messages")
    _require_one(prompt=prompt, messages=messages, token_ids=token_ids)
    if settings.get("max_tokens") == 0:
        raise InvalidRequestError("max_tokens is 0, but must be positive", param="max_tokens")
    request = inference_pb2.GenerateRequest(
        model=settings.get("model", ""),
        cache_salt=settings.get("cache_salt", ""),
        session_id=settings.get("session_id", ""),
    )
    try:
        request.choice_count = settings.get("n", 1)
        _set_sampling(request.sampling, settings)
        request.use_seed = "seed" in settings
        request.token_ids.ids.extend(token_ids or ())
    except ValueError as error:
        raise InvalidRequestError(f"a number is out of range: {error}") from error
    request.bad_words.extend(settings.get("bad_words", ()))
    stop = settings.get("stop", ())
    request.stop.extend([stop] if isinstance(stop, str) else stop)
    if prompt is not None:
        request.text = prompt
    elif messages is not None:
        request.chat.CopyFrom(_chat(messages, settings))
    return request


def _chat(messages: Messages, settings: Settings) -> inference_pb2.ChatPrompt:
    chat = chat_prompt(messages)
    set_tools(chat, settings.get("tools", ()), settings.get("tool_choice"))
    chat.single_tool_call = not settings.get("parallel_tool_calls", True)
    chat.continue_final_message = settings.get("continue_final_message", False)
    if variables := settings.get("chat_template_kwargs"):
        chat.template_variables = json.dumps(variables)
    return chat


def _set_sampling(sampling: types_pb2.SamplingParams, settings: Settings) -> None:
    """ValueError for numbers that the message cannot hold."""
    sampling.temperature = settings.get("temperature", 0.0)
    sampling.top_p = settings.get("top_p", 1.0)
    sampling.top_k = settings.get("top_k", 0)
    sampling.min_p = settings.get("min_p", 0.0)
    sampling.seed = settings.get("seed", 0)
    sampling.max_tokens = settings.get("max_tokens", 0)
    sampling.min_tokens = settings.get("min_tokens", 0)
    sampling.repetition_penalty = settings.get("repetition_penalty", 1.0)
    sampling.presence_penalty = settings.get("presence_penalty", 0.0)
    sampling.frequency_penalty = settings.get("frequency_penalty", 0.0)
    sampling.logit_bias.update(settings.get("logit_bias", {}))
    sampling.allowed_token_ids.extend(settings.get("allowed_token_ids", ()))
    if "logprobs" in settings:
        sampling.logprobs = settings["logprobs"]
    if "structured_outputs" in settings:
        outputs = structured_to_proto(settings["structured_outputs"])
        sampling.structured_outputs.CopyFrom(outputs)
    if "prompt_logprobs" in settings:
        sampling.prompt_logprobs = settings["prompt_logprobs"]


def tokenize_request(text: str | None, settings: TokenizeSettings) -> inference_pb2.TokenizeRequest:
    """The message for tokenizing text or a conversation."""
    messages = settings.get("messages")
    _require_one(text=text, messages=messages)
    request = inference_pb2.TokenizeRequest(model=settings.get("model", ""))
    if messages is not None:
        request.chat.CopyFrom(chat_prompt(messages))
    else:
        request.text = text or ""
    return request


def _require_one(**parts: object) -> None:
    num_given = sum(part is not None for part in parts.values())
    if num_given != 1:
        raise InvalidRequestError(
            f"{num_given} of {', '.join(parts)} are given, but must be exactly one",
            param=next(iter(parts)),
        )
