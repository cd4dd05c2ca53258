"""ONNX Runtime GenAI, with padded batches. `--prepare FOLDER WAY` builds its model of a checkpoint, once, beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import serve

_MOST_AT_ONCE = 32
"""It takes no more."""


class OnnxRuntimeEngine:
    """A `Generator` for each call, which ends with its longest answer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import onnxruntime_genai

        self._batch_size = min(_MOST_AT_ONCE, settings["max_num_seqs"])
        folder = _built(Path(settings["model"]), settings["quantization"])
        config = onnxruntime_genai.Config(str(folder))
        threads = {"intra_op_num_threads": settings["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        for begin in range(0, len(prompts), self._batch_size):
            end = begin + self._batch_size
            self._generate(prompts[begin:end], max(num_tokens[begin:end]))
        # Longer answers than were asked for are cut.
        return list(num_tokens)

    def _generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        import numpy as np
        import onnxruntime_genai

        longest = max(map(len, prompts))
        params = onnxruntime_genai.GeneratorParams(self._model)
        length = longest + num_tokens
        params.set_search_options(
            batch_size=len(prompts), min_length=length, max_length=length, do_sample=False
        )
        generator = onnxruntime_genai.Generator(self._model, params)
        padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        generator.append_tokens(np.array(padded, dtype=np.int32))
        for _ in range(num_tokens):
            generator.generate_next_token()
        assert len(generator.get_sequence(0)) == length


def _built(model: Path, way: str) -> Path:
    return model.with_name(f"{model.name}-onnxruntime-{way}")


def _build(model: Path, way: str) -> None:
    folder = _built(model, way)
    if folder.is_dir():
        return
    draft = folder.with_name(f"{folder.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p", way]
    places = ["-m", str(model), "-o", str(draft), "-c", str(draft / "cache")]
    subprocess.run(command + places, check=True)
    shutil.rmtree(draft / "cache", ignore_errors=True)
    draft.rename(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        _build(Path(sys.argv[2]), sys.argv[3])
    else:
        serve(OnnxRuntimeEngine)
