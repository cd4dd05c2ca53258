"""Whether an engine keeps to its share of a GPU's memory: what it has when it is ready, and after many answers."""

from __future__ import annotations

import random

import psutil
import torch
from random_models import make_model

from gpu.probe import Probe
from pagemesh.llm import LLM, SamplingParams

NUM_STREAMS = 64
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
UTILIZATION = 0.5
VOCAB_SIZE = 8000
"""Of the prompts: what every model has."""


def run(probe: Probe) -> None:
    """The large model with sampled streams, whose logits are sorted and drawn from."""
    probe.row("memory", "GB")
    with LLM(
        str(make_model("10M" if probe.toy else "8B")),
        max_model_len=PROMPT_TOKENS + OUTPUT_TOKENS,
        device="cpu" if probe.toy else "cuda",
        gpu_memory_utilization=UTILIZATION,
        kv_cache_memory=0.1 if probe.toy else None,
    ) as llm:
        ready = _figure(probe, "when the engine is ready", _taken(probe))
        _answer(llm, *((2, 4) if probe.toy else (NUM_STREAMS, OUTPUT_TOKENS)))
        after = _figure(probe, "after sampled streams", _taken(probe))
    probe.row("grown by", f"{(after - ready) / 1e9:.3f}")
    if not probe.toy:
        share = UTILIZATION * torch.cuda.mem_get_info()[1]
        _figure(probe, "the engine's share", share)
        _figure(probe, "after sampled streams, over the share", max(0.0, after - share))


def _answer(llm: LLM, num_streams: int, num_tokens: int) -> None:
    """Twice, so that what the first time keeps is used."""
    draws = random.Random(7)
    prompts = [
        [draws.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in range(num_streams)
    ]
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=num_tokens, ignore_eos=True)
    for _ in range(2):
        llm.generate(prompts, params, use_tqdm=False)


def _taken(probe: Probe) -> float:
    """Bytes: of the device by everybody, where there is one."""
    if probe.toy:
        return float(psutil.Process().memory_info().rss)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def _figure(probe: Probe, name: str, num_bytes: float) -> float:
    probe.figure(f"memory {name}", "GB", [num_bytes / 1e9])
    probe.row(name, f"{num_bytes / 1e9:.3f}")
    return num_bytes
