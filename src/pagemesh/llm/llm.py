"""`LLM`: a model in this process, with vLLM's interface for offline use.

The engine is the one that workers run, on a thread of this process; there are no services and no other
processes.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from pagemesh.config import HubConfig
from pagemesh.llm.embedding import Embedder
from pagemesh.llm.generation import Submission, run_to_end
from pagemesh.llm.inbox import Deliveries, Progress
from pagemesh.llm.outputs import EmbeddingRequestOutput, RequestOutput, without_failures
from pagemesh.llm.params import SamplingParams
from pagemesh.llm.prompts import (
    Conversation,
    EncodedPrompt,
    Prompt,
    read_conversations,
    read_prompts,
)
from pagemesh.llm.settings import find_model, read_settings
from pagemesh.loading.engine import load_engine
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
        self,
        model: str | os.PathLike[str],
        *,
        seed: int | None = None,
        load_format: str = "auto",
        gguf_file: str | None = None,
        **settings: Any,
    ) -> None:
        """Load `model`, a folder, a GGUF file, a hub id or a short name; of a folder or a hub id its `gguf_file`.

        Prompts without a seed draw theirs from `seed`, one after the other, or by chance. `load_format` may say what
        the model's files are: safetensors, bitsandbytes or gguf; it changes nothing, and another format than theirs is
        refused. Settings are those of `pagemesh decode`, as keywords: `dtype`, `max_model_len`, `threads`,
        `kv_cache_memory`, `block_size`, `max_num_seqs` … ConfigError naming one that is unknown or
        cannot be, or what is wrong with the model.
        """
        configure_library_logging()
        config = read_settings(model, settings, gguf_file)
        folder = find_model(config.model, load_format)
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
