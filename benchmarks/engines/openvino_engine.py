"""OpenVINO GenAI with continuous batching; a checkpoint is converted once and kept beside it."""

from __future__ import annotations

import shutil
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
    """The model in OpenVINO's own format, with its weights in the type that they have."""
    folder = model.with_name(f"{model.name}-openvino")
    if not folder.is_dir():
        from openvino import save_model
        from openvino_tokenizers import convert_tokenizer
        from optimum.intel import OVModelForCausalLM
        from transformers import AutoTokenizer

        draft = model.with_name(f"{model.name}-openvino-draft")
        shutil.rmtree(draft, ignore_errors=True)
        OVModelForCausalLM.from_pretrained(model, export=True, load_in_8bit=False).save_pretrained(
            draft
        )
        tokenizer, detokenizer = convert_tokenizer(
            AutoTokenizer.from_pretrained(model), with_detokenizer=True
        )
        save_model(tokenizer, draft / "openvino_tokenizer.xml")
        save_model(detokenizer, draft / "openvino_detokenizer.xml")
        draft.rename(folder)
    return folder


if __name__ == "__main__":
    serve(OpenVinoEngine)
