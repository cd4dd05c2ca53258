"""`pagemesh bench throughput`: how much a model in this process answers when it is asked all at once."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pagemesh.bench.datasets import Dataset
from pagemesh.bench.offline_engine import load_llm
from pagemesh.bench.prompt_writer import PromptWriter
from pagemesh.bench.settings import BenchThroughputConfig
from pagemesh.models.resolve import resolve_model_path
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.workload.files import require_writable, write_text


def run(config: BenchThroughputConfig) -> None:
    """Answer all prompts, and print how fast. Raises a PagemeshError for what cannot be loaded or answered."""
    if config.output_json is not None:
        require_writable("--output-json", config.output_json)
    tokenizer = Tokenizer(resolve_model_path(config.model.model, config.model.hub))
    samples = Dataset(config.dataset, PromptWriter(tokenizer)).take(config.dataset.num_prompts)
    # Imported here: it loads torch.
    from pagemesh.llm import SamplingParams

    params = [
        SamplingParams(
            n=config.n, temperature=1.0, max_tokens=sample.num_output_tokens, ignore_eos=True
        )
        for sample in samples
    ]
    with load_llm(config.model, config.hardware, config.cache, config.scheduler) as llm:
        began_at = time.perf_counter()
        outputs = llm.generate(
            [sample.prompt for sample in samples], params, use_tqdm=sys.stderr.isatty()
        )
        seconds = time.perf_counter() - began_at
    num_read = sum(len(output.prompt_token_ids) for output in outputs)
    num_made = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    figures: dict[str, Any] = {
        "elapsed_time": seconds,
        "num_requests": len(samples),
        "total_num_tokens": num_read + num_made,
        "requests_per_second": len(samples) / seconds,
        "tokens_per_second": (num_read + num_made) / seconds,
        "total_input_tokens": num_read,
        "total_output_tokens": num_made,
    }
    print(
        f"Throughput: {figures['requests_per_second']:.2f} requests/s,"
        f" {figures['tokens_per_second']:.2f} total tokens/s, {num_made / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {num_read}")
    print(f"Total num output tokens:  {num_made}")
    if config.output_json is not None:
        write_text("--output-json", config.output_json, json.dumps(figures, indent=2) + "\n")
