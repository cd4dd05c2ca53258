"""How fast is the engine on a GPU, for a model of Llama 3 8B's shape with random weights?

A decode reads every weight but the embedding table once, and its KV: a step takes at least as long as
the GPU needs to read them. Prefill and large batches are compared with transformers' continuous batching,
in the same run, one engine at a time on the GPU.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from engine_process import EngineProcess, EngineSettings
from random_models import GPU_SHAPES, Shape, make_model
from report import Report, choice, make_parser
from workload import Request, make_prompt

sys.path.insert(0, str(Path(__file__).resolve().parent / "kernels"))

from limits import Limits, measure_limits

QUESTION = "The engine on a GPU, for a model of Llama 3 8B's shape with random weights"
MODEL = "8B"
ENGINES = {
    "pagemesh": "pagemesh_engine.py",
    "transformers-continuous": "transformers_continuous_engine.py",
}
STREAM_PROMPT, STREAM_TOKENS = 512, 128
NUM_STREAMS = 64
"""Of the comparison of throughput."""
BATCH_PROMPT, BATCH_TOKENS = 256, 256
LONG_PROMPT = 4096
ITEM = 2
"""Bytes of a bfloat16."""


def main() -> None:
    """Measure both engines, one after the other."""
    parser = make_parser("gpu_engine", QUESTION)
    parser.add_argument("--engines", default=",".join(ENGINES), help="names with commas between")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192, help="of a step")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of ours (default: %(default)s)")
    options = parser.parse_args()
    names = choice(options.engines, ENGINES)
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and there is none")
    device = torch.device("cuda")
    model = make_model(MODEL)
    limits = measure_limits(device, quick=options.quick)
    # What both needed of the device is the engines'.
    torch.cuda.empty_cache()
    about = {
        "device": torch.cuda.get_device_name(device),
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "kv_cache_dtype": options.kv_cache_dtype,
    }
    report = Report("gpu_engine", QUESTION, about)
    least_ms = add_limits(report, limits)
    settings = EngineSettings(
        str(model),
        threads=8,
        max_model_len=LONG_PROMPT + STREAM_TOKENS,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_cache_memory=16.0,
        kv_cache_dtype=options.kv_cache_dtype,
        device="cuda",
    )
    rates = {}
    for name in names:
        if name == "pagemesh" or importlib.util.find_spec("transformers") is not None:
            rates[name] = measure(report, name, settings, least_ms, 1 if options.quick else 3)
            report.write(options.json, quietly=True)
    ours, theirs = (rates.get(name, []) for name in ENGINES)
    if ours and theirs:
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        report.add("throughput, times transformers' continuous batching", "", ratios, at_least=3)
    report.print()
    report.write(options.json)


def add_limits(report: Report, limits: Limits) -> float:
    """What the device can do, and the floors that follow; gives a decode's, in ms per token."""
    report.add("copy, GB/s", "", [limits.bytes_per_s / 1e9])
    report.add("product of matrices, TFLOP/s", "", [limits.flops_per_s / 1e12])
    decode = decode_bytes(GPU_SHAPES[MODEL], STREAM_PROMPT + STREAM_TOKENS / 2)
    least_ms = decode * 1e3 / limits.bytes_per_s
    report.add("one stream, least time for its bytes", "ms/token", [least_ms])
    prompt = prompt_flops(GPU_SHAPES[MODEL], LONG_PROMPT)
    report.add("TTFT, least time for its products", "ms", [prompt * 1e3 / limits.flops_per_s])
    return least_ms


def measure(
    report: Report, name: str, settings: EngineSettings, least_ms: float, count: int
) -> list[float]:
    """Figures of one engine; gives its tokens/s of many streams by rounds, none where it does not work.

    Our own figures do not depend on whether another engine works here.
    """
    try:
        with EngineProcess(Path(sys.executable), ENGINES[name], settings) as engine:
            report.add(f"{name}: ready", "s", [engine.ready_s])
            streams, firsts, rates = rounds(engine, count)
    except RuntimeError as error:
        if name == "pagemesh":
            raise
        print(f"{name} could not be measured: {error}", file=sys.stderr)
        return []
    report.add(f"{name}: one stream", "ms/token", streams)
    report.add(f"{name}: TTFT of {LONG_PROMPT} tokens", "ms", firsts)
    report.add(f"{name}: {NUM_STREAMS} streams", "tokens/s", rates)
    if name == "pagemesh":
        shares = [least_ms / one for one in streams]
        report.add("one stream, share of the limit", "", shares, at_least=0.85)
    return rates


def decode_bytes(shape: Shape, context: float) -> float:
    """That a decode must read: all projections and the head, and the KV of its context."""
    weights = layers_size(shape) + shape.vocab_size * shape.hidden_size
    return (weights + 2 * shape.num_layers * key_value_size(shape) * context) * ITEM


def prompt_flops(shape: Shape, num_tokens: int) -> float:
    """Of the first token of a prompt: all projections, attention, and the head once."""
    products = num_tokens * layers_size(shape) + shape.vocab_size * shape.hidden_size
    pairs = num_tokens * (num_tokens + 1) / 2
    return 2.0 * products + 4.0 * shape.num_layers * shape.hidden_size * pairs


def layers_size(shape: Shape) -> int:
    """Weights of all projections but the head's."""
    projections = 2 * shape.hidden_size + 2 * key_value_size(shape) + 3 * shape.intermediate_size
    return shape.num_layers * shape.hidden_size * projections


def key_value_size(shape: Shape) -> int:
    """Numbers in the keys of a token, and in its values, in one layer."""
    return shape.hidden_size // shape.num_heads * shape.num_kv_heads


def rounds(engine: EngineProcess, count: int) -> tuple[list[float], list[float], list[float]]:
    """Of each round: ms per token of one stream, TTFT of a long prompt in ms, tokens/s of many streams."""
    seeds = iter(range(1_000_000))
    engine.generate(list(fresh(seeds, 2, STREAM_PROMPT, 8)))
    streams, firsts, rates = [], [], []
    for _ in range(count):
        first = engine.generate(list(fresh(seeds, 1, STREAM_PROMPT, 1))).seconds
        whole = engine.generate(list(fresh(seeds, 1, STREAM_PROMPT, STREAM_TOKENS))).seconds
        streams.append((whole - first) * 1e3 / (STREAM_TOKENS - 1))
        firsts.append(engine.generate(list(fresh(seeds, 1, LONG_PROMPT, 1))).seconds * 1e3)
        answer = engine.generate(list(fresh(seeds, NUM_STREAMS, BATCH_PROMPT, BATCH_TOKENS)))
        rates.append(answer.num_tokens / answer.seconds)
    return streams, firsts, rates


def fresh(
    seeds: Iterator[int], num_requests: int, num_prompt_tokens: int, num_tokens: int
) -> Iterator[Request]:
    """Requests whose prompts nobody has seen."""
    for _ in range(num_requests):
        prompt = make_prompt(num_prompt_tokens, GPU_SHAPES[MODEL].vocab_size, next(seeds))
        yield Request(prompt, num_tokens)


if __name__ == "__main__":
    main()
