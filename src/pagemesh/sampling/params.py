"""How the next token of a request is chosen. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pagemesh.sampling.structured.outputs import StructuredOutputs

MAX_TEMPERATURE: Final = 2
"""Highest temperature that services accept, as in OpenAI's API; the sampler takes any."""

MAX_LOGPROBS: Final = 20
"""Most log probabilities that are reported beside a token's own; vLLM's default limit."""

MAX_LOGIT_BIAS: Final = 100.0
"""Largest amount of a bias; it alone decides between any two tokens."""

MAX_BAD_WORDS: Final = 128
"""Most forbidden sequences of one request, as in vLLM."""

MAX_BAD_WORDS_TOKENS: Final = 1024
"""Most tokens in all of them together, as in vLLM."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request, with vLLM's names and meaning; `validation` checks them."""

    temperature: float = 1.0
    """Softmax temperature; 0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all tokens."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 and -1 keep all."""

    min_p: float = 0.0
    """Tokens less likely than this times the likeliest one are dropped; in [0, 1], 0 keeps all."""

    repetition_penalty: float = 1.0
    """Divides the positive logits of all tokens of the prompt and the output, and multiplies the
    negative ones; above 1 makes them less likely."""

    presence_penalty: float = 0.0
    """Taken from the logits of all tokens of the output; in [-2, 2]."""

    frequency_penalty: float = 0.0
    """Taken from the logit of a token once for each time it is in the output; in [-2, 2]."""

    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids; each in [-100, 100]."""

    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences that must not be in the output: the last token of one is not sampled behind the others."""

    allowed_token_ids: tuple[int, ...] | None = None
    """The only token ids that may be sampled; none allows all."""

    seed: int = 0
    """Seed of the counter-based draws, an unsigned 64-bit integer."""

    max_tokens: int = 16
    """Most tokens to generate, those of an earlier incarnation included."""

    min_tokens: int = 0
    """Stop tokens are not sampled before this many tokens were generated."""

    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the request; the stop token is part of the output."""

    ignore_eos: bool = False
    """When true, the model's own end-of-sequence tokens do not end the request."""

    structured_outputs: StructuredOutputs | None = None
    """What the output must look like; none leaves it free. The output ends where nothing can follow,
    whatever `min_tokens` and `ignore_eos` say; before that, they hold."""

    logprobs: int | None = None
    """Likeliest tokens whose log probabilities are reported beside each sampled token's; 0 reports
    that one alone, none no log probabilities."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0
