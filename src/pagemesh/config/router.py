"""Settings of a router: chat templates, what requests may ask for, sampling that they do not ask for, tenants, its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pagemesh.config.environment import read_object, require
from pagemesh.errors import ConfigError

ContentFormat = Literal["auto", "string", "openai"]


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Chat templates, and what answers are taken apart by."""

    chat_template: str | None = None
    """File with a Jinja chat template instead of the model's own, or the template itself."""

    chat_template_content_format: ContentFormat = "auto"
    """How templates get the content of messages: string, as one text; openai, as a list of parts. auto finds in
    the template whether it goes through parts."""

    trust_request_chat_template: bool = False
    """Accept chat templates in requests. Each is rendered in a process of its own, with limits of time and memory."""

    default_chat_template_kwargs: str = "{}"
    """JSON object with variables that chat templates get where requests have none of that name in their
    chat_template_kwargs, such as {"enable_thinking": false}."""

    enable_auto_tool_choice: bool = True
    """Let the model choose whether it calls tools; without, requests must say which or none."""

    exclude_tools_when_tool_choice_none: bool = False
    """Leave tools out of the prompt where a request says that none is to be called. Calls that the model writes all
    the same are left out of its answer either way."""

    tool_call_parser: str = "auto"
    """How the model writes tool calls, by vLLM's names: hermes, llama3_json, llama4_json, mistral, deepseek_v3 or
    deepseek_v31; auto finds it in the chat template, none leaves calls in the text."""

    reasoning_parser: str = "auto"
    """How the model writes its thoughts, by vLLM's names: qwen3 or deepseek_r1; auto finds it in the chat template,
    none leaves thoughts in the text."""

    def __post_init__(self) -> None:
        self.read_template_defaults()

    def read_template_defaults(self) -> dict[str, Any]:
        """The variables for templates. Raises ConfigError for what is no JSON object."""
        return read_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)


_MOST_LOGPROBS: Final = 20
"""Likeliest tokens that workers find: their kernels are compiled for a number."""

_MOST_SEQUENCES: Final = 16_384
"""vLLM's own limit."""


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Limits and defaults of requests."""

    max_choices: int = 128
    """Answers to one prompt that a request may ask for, as n or best_of. 128 is OpenAI's limit."""

    max_stop_strings: int = 64
    """Stop strings that a request may have. OpenAI takes 4, vLLM any number; each of them costs the router time for
    every character of an answer."""

    max_logprobs: int = _MOST_LOGPROBS
    """Likeliest tokens beside each token that a request may ask for, as top_logprobs, logprobs or prompt_logprobs; 20
    at most."""

    return_tokens_as_token_ids: bool = False
    """Write tokens in log probabilities as token_id:5, also where requests do not ask for it."""

    enable_force_include_usage: bool = False
    """End every stream of chats and completions with the token counts, also where requests do not ask for them."""

    enable_tokenizer_info_endpoint: bool = False
    """Answer GET /tokenizer_info, which shows the tokenizer's settings and the chat template."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("--max-choices", self.max_choices, _MOST_SEQUENCES),
            ("--max-stop-strings", self.max_stop_strings, _MOST_SEQUENCES),
        ):
            require(1 <= value <= most, name, value, f"between 1 and {most}")
        require(
            0 <= self.max_logprobs <= _MOST_LOGPROBS,
            "--max-logprobs",
            self.max_logprobs,
            f"between 0 and {_MOST_LOGPROBS}",
        )


_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (1e-6, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 1e6),
    "max_new_tokens": (1, 2**31 - 1),
}
"""What numbers of generation_config.json may be, as requests may have them."""

_KEYS: Final = (*_BOUNDS, "do_sample")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Where they come from, under vLLM's names."""

    generation_config: str = "auto"
    """Whose defaults of sampling hold: auto, those of generation_config.json in the model's folder; vllm, neutral
    ones; or those of such a file in the folder that is named here, whose max_new_tokens no request may exceed. Where
    answers end is up to the model's own file in any case."""

    override_generation_config: str = "{}"
    """JSON object with values that replace those, such as {"temperature": 0.5}: temperature, top_p, top_k, min_p,
    repetition_penalty, do_sample, and max_new_tokens, which no request may exceed then."""

    seed: int | None = None
    """Seed from which each router draws those of requests that bring none, one after the other: asked for the same in
    the same order after its start, it gives the same answers. Unset, every answer has a seed by chance."""

    def __post_init__(self) -> None:
        require(self.generation_config != "", "--generation-config", "", "auto, vllm or a folder")
        for key, value in self.overrides.items():
            check_generation_value("--override-generation-config", key, value)

    @property
    def folder(self) -> str | None:
        """The folder that is named; None for none."""
        return None if self.generation_config in ("auto", "vllm") else self.generation_config

    @property
    def overrides(self) -> dict[str, Any]:
        """The values that replace others. Raises ConfigError for what is no JSON object, or has unknown keys."""
        found = read_object("--override-generation-config", self.override_generation_config)
        for key in found:
            if key not in _KEYS:
                raise ConfigError(
                    f"--override-generation-config has {key!r}, but may have only {', '.join(_KEYS)}"
                )
        return found


def check_generation_value(where: str, key: str, value: object) -> None:
    """Raise ConfigError for a value that cannot be, null aside, with where it stands."""
    if value is None:
        return
    if key == "do_sample":
        is_right, expected = isinstance(value, bool), "true or false"
    else:
        low, high = _BOUNDS[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_right = is_number and low <= value <= high  # type: ignore[operator]
        expected = f"in [{low}, {high}]"
    if not is_right:
        raise ConfigError(f"{where}: {key} is {value!r}, but must be {expected}")


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """Whether the log has lines of each request, and how much of its prompt, under vLLM's names."""

    enable_log_requests: bool = False
    """Log each request with its parameters when it comes, and its token counts when it ends. With --log-level debug,
    and only then, its prompt too."""

    max_log_len: int | None = None
    """Characters of a prompt, and of its token ids the number, that are logged at most; unset, all of them."""

    def __post_init__(self) -> None:
        length = self.max_log_len
        require(length is None or length >= 0, "--max-log-len", length, "0 or more")


TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names stand in headers and logs."""

OutputPolicy = Literal["cut", "refuse"]
"""What becomes of a request for more output tokens than it may have."""


@dataclass(frozen=True, slots=True)
class TenantsConfig:
    """API keys, the tenants that they belong to, and limits."""

    api_key: tuple[str, ...] = field(default=(), repr=False)
    """Keys, one of which clients must send as `authorization: Bearer KEY` or `x-api-key: KEY`; all belong to the
    tenant "default". Other users of the machine can read command lines: PAGEMESH_API_KEY in the environment says
    the same when this is unset, with commas between keys. Without any key or file, everybody may call."""

    api_key_file: str | None = None
    """YAML or JSON file with tenants, the hashes of their keys and their limits, as `pagemesh keys new` writes it.
    Read again whenever it changes; one that cannot be read changes nothing."""

    requests_per_minute: int | None = None
    """Requests that each tenant may begin in a minute, if the key file does not say otherwise; all clients together
    without keys. More are refused with 429."""

    tokens_per_minute: int | None = None
    """Tokens of prompts and answers that each tenant may use in a minute, likewise. Prompt and max_tokens are
    reserved when a request begins; what was not used is given back when it ends."""

    concurrent_requests: int | None = None
    """Requests of each tenant that may run at the same time, likewise."""

    max_output_tokens: int | None = None
    """Tokens that each answer of a tenant may have at most, likewise: each of a request's `n`, and also those of
    requests that say nothing about it."""

    max_output_tokens_policy: OutputPolicy = "cut"
    """What becomes of requests for more, likewise: cut gives them as many as they may have, and they end with
    finish_reason "length", as in vLLM; refuse answers 400."""

    open_metrics: bool = False
    """Show /metrics, of the gateway as well, to whoever asks: scrapers that were made for vLLM send no key. Without
    keys it is open anyway."""

    limits_shared_by: int = 1
    """Routers that clients are divided among: each allows its part of all limits."""

    @property
    def asks_for_keys(self) -> bool:
        """Whether these settings alone say that calls without a key are refused; a file without keys does."""
        return bool(self.api_key) or self.api_key_file is not None

    def __post_init__(self) -> None:
        for key in self.api_key:
            # The key itself is not shown.
            is_sendable = key.isascii() and key.isprintable() and not set(key) & set(" ,") and key
            require(bool(is_sendable), "--api-key", "***", "printable, without spaces and commas")
        for name in (
            "requests_per_minute",
            "tokens_per_minute",
            "concurrent_requests",
            "max_output_tokens",
            "limits_shared_by",
        ):
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            require(value is None or value > 0, flag, value, "positive")
