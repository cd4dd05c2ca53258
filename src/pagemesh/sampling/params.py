"""How the next token of a request is chosen. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request, already validated by the router."""

    temperature: float = 1.0
    """Softmax temperature; 0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all tokens."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps all."""

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

    logprobs: int | None = None
    """Likeliest tokens whose log probabilities are reported beside each sampled token's; 0 reports
    that one alone, none no log probabilities."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0
