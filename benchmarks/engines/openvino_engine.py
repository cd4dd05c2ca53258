"""OpenVINO GenAI with continuous batching. `--prepare FOLDER [WAY]` converts a checkpoint, once, beside it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from protocol import serve

_CAPABILITIES = "OPTIMIZATION_CAPABILITIES"
_PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


class OpenVinoEngine:
    """`ContinuousBatchingPipeline`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = max(1, round(settings["kv_cache_memory"]))
        scheduler.max_num_seqs = settings["max_num_seqs"]
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(_converted(Path(settings["model"]), settings["quantization"])),
            scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": _precision(settings["dtype"]),
                "INFERENCE_NUM_THREADS": settings["threads"],
            },
        )
        self._num_added = 0
        self._running: dict[str, tuple[Any, int]] = {}
        """By request_id: its handle, and how many tokens it shall have."""
        self._lengths: dict[str, int] = {}
        """By request_id: how many tokens it has."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        inputs = [_tensor(prompt) for prompt in prompts]
        results = self._pipeline.generate(inputs, [_config(number) for number in num_tokens])
        return [len(result.m_generation_ids[0]) for result in results]

    def add(self, request_id: str, prompt: Sequence[int], num_tokens: int) -> None:
        self._num_added += 1
        handle = self._pipeline.add_request(self._num_added, _tensor(prompt), _config(num_tokens))
        self._running[request_id] = handle, num_tokens
        self._lengths[request_id] = 0

    def poll(self, seconds: float) -> Iterator[tuple[str, int]]:
        if not self._running:
            time.sleep(seconds)
            return
        self._pipeline.step()
        for request_id, (handle, num_tokens) in list(self._running.items()):
            if handle.can_read():
                new = sum(len(output.generated_ids) for output in handle.read().values())
                self._lengths[request_id] += new
                yield request_id, self._lengths[request_id]
                if self._lengths[request_id] == num_tokens:
                    del self._running[request_id], self._lengths[request_id]


def _precision(dtype: str) -> str:
    """Float32 where the processor has no instructions for the type: its paged attention needs them."""
    import openvino

    name = _PRECISIONS[dtype]
    return name if name.upper() in openvino.Core().get_property("CPU", _CAPABILITIES) else "f32"


def _tensor(prompt: Sequence[int]) -> Any:
    import numpy as np
    import openvino

    return openvino.Tensor(np.array([prompt], dtype=np.int64))


def _config(num_tokens: int) -> Any:
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    return config


_BITS = {"int8": 8, "int4": 4}


def _converted(model: Path, way: str | None) -> Path:
    return model.with_name(f"{model.name}-openvino{f'-{way}' if way else ''}")


def _convert(model: Path, way: str | None) -> None:
    """Write the model in OpenVINO's own format, with its weights in the type that they have or quantised."""
    folder = _converted(model, way)
    if folder.is_dir():
        return
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    draft = folder.with_name(f"{folder.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    config = None if way is None else OVWeightQuantizationConfig(bits=_BITS[way])
    converted = OVModelForCausalLM.from_pretrained(
        model, export=True, load_in_8bit=False, quantization_config=config
    )
    converted.save_pretrained(draft)
    tokenizer, detokenizer = convert_tokenizer(
        AutoTokenizer.from_pretrained(model), with_detokenizer=True
    )
    save_model(tokenizer, draft / "openvino_tokenizer.xml")
    save_model(detokenizer, draft / "openvino_detokenizer.xml")
    draft.rename(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        _convert(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        serve(OpenVinoEngine)
