"""OpenVINO GenAI with continuous batching. `--prepare FOLDER` converts a checkpoint, once, beside it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import serve

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
            str(_converted(Path(settings["model"]))),
            scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": _PRECISIONS[settings["dtype"]],
                "INFERENCE_NUM_THREADS": settings["threads"],
            },
        )

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[int]:
        import numpy as np
        import openvino
        import openvino_genai

        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        configs = []
        for number in num_tokens:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = number
            config.ignore_eos = True
            configs.append(config)
        results = self._pipeline.generate(inputs, configs)
        return [len(result.m_generation_ids[0]) for result in results]


def _converted(model: Path) -> Path:
    return model.with_name(f"{model.name}-openvino")


def _convert(model: Path) -> None:
    """Write the model in OpenVINO's own format, with its weights in the type that they have."""
    folder = _converted(model)
    if folder.is_dir():
        return
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    draft = folder.with_name(f"{folder.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    converted = OVModelForCausalLM.from_pretrained(model, export=True, load_in_8bit=False)
    converted.save_pretrained(draft)
    tokenizer, detokenizer = convert_tokenizer(
        AutoTokenizer.from_pretrained(model), with_detokenizer=True
    )
    save_model(tokenizer, draft / "openvino_tokenizer.xml")
    save_model(detokenizer, draft / "openvino_detokenizer.xml")
    draft.rename(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        _convert(Path(sys.argv[2]))
    else:
        serve(OpenVinoEngine)
