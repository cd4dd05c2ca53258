"""The metrics of one model's generations, in vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.prompt_metrics import PromptMetrics
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import requests as declared
from pagemesh.telemetry.metrics.registry import ModelMetrics


class Progress:
    """When the tokens of one choice came."""

    def __init__(self) -> None:
        self.first = 0.0
        self.last = 0.0
        self.num_tokens = 0
        self.num_cached_tokens = 0
        """Of its prompt."""
        self.end = ""
        """Why it is over; empty while it runs."""


class GenerationMetrics:
    """Told of each choice, which counts as a request, as in vLLM."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        of_model = ModelMetrics(metrics, model_name)
        self.time_to_first_token = of_model.histogram(declared.TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = of_model.histogram(declared.INTER_TOKEN_LATENCY)
        self.generation_tokens = of_model.counter(declared.GENERATION_TOKENS)
        self.prompts = PromptMetrics(of_model)
        self._time_per_token = of_model.histogram(declared.TIME_PER_OUTPUT_TOKEN)
        self._latency = of_model.histogram(declared.E2E_REQUEST_LATENCY)
        self._prefill_time = of_model.histogram(declared.REQUEST_PREFILL_TIME)
        self._decode_time = of_model.histogram(declared.REQUEST_DECODE_TIME)
        self._inference_time = of_model.histogram(declared.REQUEST_INFERENCE_TIME)
        self._prompt_tokens = of_model.histogram(declared.REQUEST_PROMPT_TOKENS)
        self._tokens = of_model.histogram(declared.REQUEST_GENERATION_TOKENS)
        self._most_tokens = of_model.histogram(declared.REQUEST_MAX_GENERATION_TOKENS)
        self._max_tokens = of_model.histogram(declared.REQUEST_PARAMS_MAX_TOKENS)
        self._computed_tokens = of_model.histogram(declared.PREFILL_KV_COMPUTED)
        self._num_answers = of_model.histogram(declared.REQUEST_PARAMS_N)
        self._ended = of_model.counters(declared.REQUEST_SUCCESS)

    def on_end(self, reason: str) -> None:
        """A choice is over, whatever the reason."""
        self._ended[reason,].inc()

    def on_answer(
        self, progress: Progress, num_prompt_tokens: int, seconds: float, inference_seconds: float
    ) -> None:
        """A choice ended by itself, so many seconds after it came, and after workers got it."""
        self._latency.observe(seconds)
        self._inference_time.observe(inference_seconds)
        self._prompt_tokens.observe(num_prompt_tokens)
        self._tokens.observe(progress.num_tokens)
        self._computed_tokens.observe(num_prompt_tokens - progress.num_cached_tokens)
        if progress.num_tokens:
            duration = progress.last - progress.first
            self._prefill_time.observe(max(0.0, inference_seconds - duration))
            self._decode_time.observe(duration)
        if progress.num_tokens > 1:
            self._time_per_token.observe(duration / (progress.num_tokens - 1))

    def on_request(self, request: GenerationRequest, lengths: Sequence[int]) -> None:
        """All choices ended by themselves, with so many tokens each."""
        num_answers = len(request.choices) // request.num_prompts
        for first in range(0, len(lengths), num_answers):
            self._max_tokens.observe(request.choices[first].sampling.max_tokens)
            self._num_answers.observe(num_answers)
            self._most_tokens.observe(max(lengths[first : first + num_answers]))
