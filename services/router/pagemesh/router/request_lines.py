"""Lines of each request in the log, for those who ask for them: parameters, counts, and at debug level the prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import structlog

from pagemesh.config.router import RequestLogConfig
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import Embeddings, EmbedOptions, Input, PromptEmbedder
from pagemesh.router.generation.interface import RunningGeneration, TextGenerator
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)

_DEFAULTS = SamplingParams()


class RequestLines:
    """Wraps what requests of one model go through, if their lines are wanted."""

    def __init__(self, config: RequestLogConfig, model_name: str, tokenizer: Tokenizer) -> None:
        self._config = config
        self._model_name = model_name
        self._tokenizer = tokenizer

    def generator(self, generator: TextGenerator) -> TextGenerator:
        """The one to use."""
        return _LoggedGenerator(generator, self) if self._config.enable_log_requests else generator

    def embedder(self, embedder: PromptEmbedder) -> PromptEmbedder:
        """The one to use."""
        return _LoggedEmbedder(embedder, self) if self._config.enable_log_requests else embedder

    def begin(self, prompts: Sequence[Input], **parameters: Any) -> None:
        """A request is here."""
        _log.info("request received", model=self._model_name, **parameters)
        # As vLLM does it: whoever reads the log at its usual level sees no prompt.
        for index, prompt in enumerate(prompts):
            _log.debug("request prompt", index=index, **self._shown(prompt))

    def end(self, began_at: float, **counts: Any) -> None:
        """It is over."""
        _log.info("request ended", seconds=round(time.monotonic() - began_at, 6), **counts)

    def _shown(self, prompt: Input) -> dict[str, Any]:
        most = self._config.max_log_len
        if isinstance(prompt, str):
            return {"prompt": prompt[:most]}
        ids = list(prompt[:most])
        # Hardly a token has no character, and more are cut off anyway.
        text = self._tokenizer.decode(ids, skip_special_tokens=False)[:most]
        return {"prompt": text, "prompt_token_ids": ids}


class _LoggedGenerator:
    """Implements `TextGenerator`."""

    def __init__(self, inner: TextGenerator, lines: RequestLines) -> None:
        self._inner = inner
        self._lines = lines

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[RunningGeneration]:
        num_answers = len(request.choices) // request.num_prompts
        began_at, first = time.monotonic(), request.choices[0].sampling
        self._lines.begin(
            [list(choice.prompt_token_ids) for choice in request.choices[::num_answers]],
            num_prompts=request.num_prompts,
            n=num_answers,
            num_prompt_tokens=sum(
                len(choice.prompt_token_ids) for choice in request.choices[::num_answers]
            ),
            priority=request.priority,
            num_stop_strings=len(request.stop),
            params=_changed(first),
        )
        with self._inner.start(request) as generation:
            try:
                yield generation
            finally:
                usage = generation.usage()
                self._lines.end(
                    began_at,
                    num_prompt_tokens=usage.num_prompt_tokens,
                    num_completion_tokens=usage.num_completion_tokens,
                    num_cached_tokens=usage.num_cached_tokens,
                )


class _LoggedEmbedder:
    """Implements `PromptEmbedder`."""

    def __init__(self, inner: PromptEmbedder, lines: RequestLines) -> None:
        self._inner = inner
        self._lines = lines

    async def embed(
        self,
        inputs: Sequence[Input],
        field: str,
        call: Call,
        options: EmbedOptions,
    ) -> Embeddings:
        began_at = time.monotonic()
        self._lines.begin(inputs, num_prompts=len(inputs), priority=options.priority)
        embeddings = await self._inner.embed(inputs, field, call, options)
        self._lines.end(began_at, num_prompt_tokens=embeddings.num_prompt_tokens)
        return embeddings


def _changed(sampling: SamplingParams) -> dict[str, Any]:
    """Numbers that differ from the defaults; of what is made of a client's texts, that it is there."""
    told: dict[str, Any] = {}
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if value != getattr(_DEFAULTS, each.name):
            is_plain = value is None or isinstance(value, bool | int | float)
            told[each.name] = value if is_plain else "set"
    return told
