"""`pagemesh bench latency`: how long a model in this process takes for one batch, from prompts to whole answers."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from tqdm import tqdm

from pagemesh.bench.offline_engine import load_llm
from pagemesh.bench.settings import BenchLatencyConfig
from pagemesh.models.resolve import resolve_model_path
from pagemesh.tokenizer.tokenizer import Tokenizer
from pagemesh.workload.files import require_writable, write_text

_PERCENTILES: Final = (10, 25, 50, 75, 90, 99)


def run(config: BenchLatencyConfig) -> None:
    """Answer the same batch again and again, and print how long it takes. Raises as `LLM` does."""
    if config.output_json is not None:
        require_writable("--output-json", config.output_json)
    # Imported here: it loads torch.
    from pagemesh.llm import SamplingParams

    tokenizer = Tokenizer(resolve_model_path(config.model.model, config.model.hub))
    prompts = make_prompts(config, tokenizer)
    params = SamplingParams(
        n=config.n, temperature=1.0, max_tokens=config.output_len, ignore_eos=True
    )
    with load_llm(config.model, config.hardware, config.cache, config.scheduler) as llm:

        def answer() -> None:
            llm.generate(prompts, params, use_tqdm=False)

        take_times(answer, config.num_iters_warmup, "warm-up")
        seconds = take_times(answer, config.num_iters, "batches")
    percentiles = dict(
        zip(_PERCENTILES, map(float, np.percentile(seconds, _PERCENTILES)), strict=True)
    )
    print(f"Avg latency: {np.mean(seconds):.4f} seconds")
    print(f"Std latency: {np.std(seconds):.4f} seconds")
    for percentile, value in percentiles.items():
        print(f"{percentile}% percentile latency: {value:.4f} seconds")
    if config.output_json is not None:
        figures = {
            "avg_latency": float(np.mean(seconds)),
            "std_latency": float(np.std(seconds)),
            "latencies": seconds,
            "percentiles": percentiles,
        }
        write_text("--output-json", config.output_json, json.dumps(figures, indent=2) + "\n")


def make_prompts(config: BenchLatencyConfig, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids by chance, none of them special."""
    draws = random.Random(config.seed)
    special = tokenizer.special_token_ids
    plain = [token_id for token_id in range(tokenizer.vocab_size) if token_id not in special]
    return [draws.choices(plain, k=config.input_len) for _ in range(config.batch_size)]


def take_times(answer: Callable[[], None], num_times: int, title: str) -> list[float]:
    """Seconds of each of so many calls."""
    seconds = []
    for _ in tqdm(range(num_times), desc=title, disable=not sys.stderr.isatty()):
        began_at = time.perf_counter()
        answer()
        seconds.append(time.perf_counter() - began_at)
    return seconds
