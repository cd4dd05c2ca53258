"""What requests to the API may ask for, and what answers tell without being asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagemesh.config.environment import require

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
