"""Tokens of prompts, and which of them nobody computed: the mesh as one server of vLLM's would count them."""

from __future__ import annotations

from pagemesh.telemetry.metrics import requests as declared
from pagemesh.telemetry.metrics.registry import ModelMetrics


class PromptMetrics:
    """Told of each prompt with its first token, or its embedding."""

    def __init__(self, of_model: ModelMetrics) -> None:
        self._tokens = of_model.counter(declared.PROMPT_TOKENS)
        self._cached = of_model.counter(declared.PROMPT_TOKENS_CACHED)
        sources = of_model.counters(declared.PROMPT_TOKENS_BY_SOURCE)
        self._computed, self._found = sources["local_compute",], sources["local_cache_hit",]

    def on_prompt(self, num_tokens: int, num_cached: int) -> None:
        """So many tokens, of which some came out of caches."""
        self._tokens.inc(num_tokens)
        self._cached.inc(num_cached)
        self._found.inc(num_cached)
        self._computed.inc(num_tokens - num_cached)
