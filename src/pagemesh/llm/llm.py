"""`LLM`: a model in this process, with vLLM's interface for offline use.

The engine is the one that workers run, on a thread of this process; there are no services and no other
processes.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, get_type_hints

import pydantic
import structlog

from pagemesh.config import CacheConfig, HardwareConfig, HubConfig, ModelConfig, SchedulerConfig
from pagemesh.engine.loading import load_engine
from pagemesh.errors import ConfigError
from pagemesh.llm.embedding import Embedder
from pagemesh.llm.generation import Submission, run_to_end
from pagemesh.llm.inbox import Deliveries, Progress
from pagemesh.llm.outputs import EmbeddingRequestOutput, RequestOutput
from pagemesh.llm.params import SamplingParams
from pagemesh.llm.prompts import (
    Conversation,
    EncodedPrompt,
    Prompt,
    read_conversations,
    read_prompts,
)
from pagemesh.models.resolve import resolve_model_path
from pagemesh.telemetry.logs import configure_library_logging
from pagemesh.tokenizer.model_defaults import load_generation_defaults
from pagemesh.tokenizer.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS: Final = 16

# Over all models of the process, so that an id names one call in the logs.
_calls = count()


class LLM:
    """A model, loaded and running until `close`; use it in a `with` block or close it.

        with LLM("models/demo") as llm:
            (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0))
            print(output.outputs[0].text)

    Its methods may be called from several threads: the engine batches what they ask for together.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, seed: int | None = None, **settings: Any
    ) -> None:
        """Load `model`, a folder or a hub id.

        Prompts without a seed draw theirs from `seed`, one after the other, or by chance. Settings are those of `pagemesh decode`, as keywords: `dtype`, `max_model_len`, `threads`,
        `kv_cache_memory`, `block_size`, `max_num_seqs` … ConfigError naming one that is unknown or
        cannot be, or what is wrong with the model.
        """
        configure_library_logging()
        config = read_settings(model, settings)
        folder = resolve_model_path(config.model.model, config.model.hub)
        self._tokenizer = Tokenizer(folder)
        self._defaults = load_generation_defaults(folder)
        self._engine = load_engine(
            # Found already: the hub need not be asked again.
            dataclasses.replace(config.model, model=str(folder), hub=HubConfig()),
            config.cache,
            config.scheduler,
            config.hardware,
        )
        self._submission = Submission(self._engine.info, self._tokenizer, seed)
        self._deliveries = Deliveries()
        self._embedder = Embedder(self._engine, self._deliveries, self._tokenizer)
        self._engine.start(self._deliveries)
        # Also ends the engine's thread when the LLM is forgotten, or the process ends.
        self._stop = weakref.finalize(self, self._engine.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine; calls in progress fail with UnavailableError. Idempotent."""
        self._stop()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer one or several prompts, in their order.

        A prompt is a text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`. One
        `sampling_params` holds for all prompts, or there is one for each; without any, the model's own
        defaults do. `priority` has a number for each prompt, of which lower ones run first.

        Raises InvalidRequestError naming the first prompt that cannot be answered, before any is. A
        prompt that fails later does not disturb others: its output says why (`error`). Only when all
        fail is the first failure raised.
        """
        encoded = read_prompts(prompts, self._tokenizer)
        return self._run("prompts", encoded, sampling_params, priority, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; like `generate` in everything else.

        Raises UnsupportedError when the model has no chat template.
        """
        conversations = read_conversations(messages, self._tokenizer)
        return self._run("messages", conversations, sampling_params, None, use_tqdm)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[EmbeddingRequestOutput]:
        """Embed one or several prompts, in their order; prompts and errors are those of `generate`.

        A prompt may be as long as `max_model_len`; a longer one is refused, not cut.

        Raises UnsupportedError when the model gives no hidden states (those run by transformers).
        """
        outputs = self._embedder.run(prompts, str(next(_calls)), shows_progress=use_tqdm)
        return without_failures(outputs)

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds without sampling parameters: the model's generation_config.json."""
        defaults = self._defaults
        return SamplingParams(
            temperature=defaults.temperature,
            top_p=defaults.top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
            max_tokens=defaults.max_tokens or _DEFAULT_MAX_TOKENS,
        )

    def _run(
        self,
        field: str,
        prompts: Sequence[EncodedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        runs = self._submission.make_runs(
            str(next(_calls)), prompts, given, priorities=priority, field=field
        )
        with Progress(len(runs), shown=use_tqdm) as progress:
            run_to_end(self._engine, self._deliveries, runs, progress)
        return without_failures([run.output() for run in runs])


Area = TypeVar("Area")

_STRICT = pydantic.ConfigDict(strict=True)


class OfflineSettings(NamedTuple):
    """All that an engine is made from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    hardware: HardwareConfig


_AREAS = (ModelConfig, CacheConfig, SchedulerConfig, HardwareConfig)


def read_settings(model: str | os.PathLike[str], settings: Mapping[str, Any]) -> OfflineSettings:
    """Sort settings into their areas; ConfigError naming the first that is unknown or cannot be."""
    known = {name for area in _AREAS for name in _names(area)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"LLM has no setting {name!r}; there are {', '.join(sorted(known))}")
    given = {"model": os.fspath(model), **settings}
    return OfflineSettings(
        _read(ModelConfig, given),
        _read(CacheConfig, given),
        _read(SchedulerConfig, given),
        _read(HardwareConfig, given),
    )


def _names(area: type[Any]) -> list[str]:
    """Settings of an area and of the areas in it, side by side as on the command line."""
    names: list[str] = []
    hint: Any  # a type, or what stands for several
    for name, hint in get_type_hints(area).items():
        names += _names(hint) if _is_area(hint) else [name]
    return names


def _is_area(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _read(area: type[Area], given: Mapping[str, Any]) -> Area:
    values: dict[str, Any] = {}
    hint: Any
    for name, hint in get_type_hints(area).items():
        if _is_area(hint):
            values[name] = _read(hint, given)
        elif name in given:
            values[name] = _check(name, hint, given[name])
    return area(**values)


def _check(name: str, hint: Any, value: object) -> object:
    try:
        return pydantic.TypeAdapter(hint, config=_STRICT).validate_python(value)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from error


log = structlog.get_logger(__name__)

Output = TypeVar("Output", RequestOutput, EmbeddingRequestOutput)


def without_failures(outputs: list[Output]) -> list[Output]:
    """The outputs, with a word about those that failed; raises when there are no others."""
    failed = [output for output in outputs if output.error is not None]
    for output in failed:
        log.warning("request failed", request_id=output.request_id, error=str(output.error))
    if failed and len(failed) == len(outputs):
        assert failed[0].error is not None
        raise failed[0].error
    return outputs
