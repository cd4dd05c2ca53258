"""From the client's arguments to the messages of `Inference`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from pagemesh.client.conversation import Messages, ToolChoice, Tools, chat_prompt, set_tools
from pagemesh.client.fields import check_names, put, told_as
from pagemesh.errors import InvalidRequestError
from pagemesh.messages import structured_to_proto
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.v1 import inference_pb2, types_pb2

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

    stop_token_ids: Sequence[int]
    """Token ids that end the answer; the one that does is part of it."""

    ignore_eos: bool
    """Whether the model's own ends of an answer are passed over."""

    priority: int
    """Lower comes first, from the router's queue on; 0 by default."""

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


_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "logprobs",
    "prompt_logprobs",
)
"""Settings that are called so in `SamplingParams`, too, where what is left out has its default."""


def generate_request(prompt: str | None, settings: Settings) -> inference_pb2.GenerateRequest:
    """The message for a generation; InvalidRequestError for a setting that there is not, or that it cannot hold."""
    check_names(settings, Settings)
    token_ids = settings.get("token_ids")
    messages = settings.get("messages")
    _require_one(prompt=prompt, messages=messages, token_ids=token_ids)
    if settings.get("max_tokens") == 0:
        raise InvalidRequestError("max_tokens is 0, but must be positive", param="max_tokens")
    request = inference_pb2.GenerateRequest()
    for name in ("model", "cache_salt", "session_id", "priority", "bad_words"):
        if name in settings:
            put(request, name, settings[name])
    put(request, "choice_count", settings.get("n", 1), "n")
    _set_sampling(request.sampling, settings)
    request.use_seed = "seed" in settings
    stop = settings.get("stop", ())
    put(request, "stop", [stop] if isinstance(stop, str) else stop)
    if prompt is not None:
        put(request, "text", prompt, "prompt")
    elif messages is not None:
        request.chat.CopyFrom(_chat(messages, settings))
    else:
        put(request.token_ids, "ids", token_ids, "token_ids")
    return request


def _chat(messages: Messages, settings: Settings) -> inference_pb2.ChatPrompt:
    chat = chat_prompt(messages)
    set_tools(chat, settings.get("tools", ()), settings.get("tool_choice"))
    chat.single_tool_call = not settings.get("parallel_tool_calls", True)
    put(chat, "continue_final_message", settings.get("continue_final_message", False))
    if variables := settings.get("chat_template_kwargs"):
        with told_as("chat_template_kwargs", variables):
            chat.template_variables = json.dumps(variables)
    return chat


def _set_sampling(sampling: types_pb2.SamplingParams, settings: Settings) -> None:
    sampling.temperature, sampling.top_p, sampling.repetition_penalty = 0.0, 1.0, 1.0
    for name in _SAMPLING:
        if name in settings:
            put(sampling, name, settings[name])
    if "structured_outputs" in settings:
        outputs = settings["structured_outputs"]
        with told_as("structured_outputs", outputs):
            sampling.structured_outputs.CopyFrom(structured_to_proto(outputs))


def tokenize_request(text: str | None, settings: TokenizeSettings) -> inference_pb2.TokenizeRequest:
    """The message for tokenizing text or a conversation."""
    check_names(settings, TokenizeSettings)
    messages = settings.get("messages")
    _require_one(text=text, messages=messages)
    request = inference_pb2.TokenizeRequest()
    put(request, "model", settings.get("model", ""))
    if messages is not None:
        request.chat.CopyFrom(chat_prompt(messages))
    else:
        put(request, "text", text)
    return request


def detokenize_request(token_ids: Sequence[int], model: str) -> inference_pb2.DetokenizeRequest:
    """The message for the text of token ids."""
    request = inference_pb2.DetokenizeRequest()
    put(request, "model", model)
    put(request, "token_ids", token_ids)
    return request


def _require_one(**parts: object) -> None:
    num_given = sum(part is not None for part in parts.values())
    if num_given != 1:
        raise InvalidRequestError(
            f"{num_given} of {', '.join(parts)} are given, but must be exactly one",
            param=next(iter(parts)),
        )


class TextSettings(TypedDict, total=False):
    """What comparing texts can be told."""

    model: str
    """Served name; needed only where the mesh serves several models."""

    timeout: float
    """Seconds to wait; 600 by default."""


class EmbedSettings(TextSettings, total=False):
    """What embedding can be told."""

    dimensions: int
    """Length of the vectors, where the model was trained for that."""

    cache_salt: str
    """Only requests of the same tenant with the same salt share cached KV."""


Inputs = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""One or several texts, or the same as token ids."""


def embed_request(inputs: Inputs, settings: EmbedSettings) -> inference_pb2.EmbedRequest:
    """The message; InvalidRequestError for numbers that it cannot hold, and for texts mixed with ids."""
    check_names(settings, EmbedSettings)
    request = inference_pb2.EmbedRequest()
    for name in ("model", "cache_salt", "dimensions"):
        if name in settings:
            put(request, name, settings[name])
    with told_as("texts", inputs):
        for each in [inputs] if isinstance(inputs, str) or _are_ids(inputs) else inputs:
            if isinstance(each, str):
                request.texts.append(each)
            else:
                request.token_ids.add(ids=each)
    return request


def score_request(
    first: str | Sequence[str], second: str | Sequence[str], settings: TextSettings
) -> inference_pb2.ScoreRequest:
    """The message for how alike texts are."""
    check_names(settings, TextSettings)
    request = inference_pb2.ScoreRequest()
    put(request, "model", settings.get("model", ""))
    put(request, "first_texts", [first] if isinstance(first, str) else first, "first")
    put(request, "second_texts", [second] if isinstance(second, str) else second, "second")
    return request


def rerank_request(
    query: str, documents: Sequence[str], top_n: int, settings: TextSettings
) -> inference_pb2.RerankRequest:
    """The message for documents in order."""
    check_names(settings, TextSettings)
    request = inference_pb2.RerankRequest()
    put(request, "model", settings.get("model", ""))
    put(request, "query", query)
    put(request, "documents", documents)
    put(request, "top_count", top_n, "top_n")
    return request


def _are_ids(inputs: Sequence[object]) -> bool:
    return bool(inputs) and isinstance(inputs[0], int)
