"""What does the mesh add to the engine's own time, for each request and for each token, at one stream?

The same requests run through the gateway, at the router, at the decode worker and at an engine without
gRPC, in interleaved rounds; the overhead is the median of the differences within a round. In a round
each path has some requests, one right after the other as in one stream, and their median counts. The
first one comes after a pause, in which processes slept and other code took their caches: it is shown
apart. Every prompt is new, so no prefix cache helps. Aggregated: the decode worker prefills.
Disaggregated: a prefill worker does and sends the KV, which counts as overhead here. The two workers are on
one host and share memory, as `pagemesh up` has it: over gRPC, as between hosts, KV takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from statistics import median

from members import all_members, plan_of
from mesh import MODEL, Mesh
from paths import (
    NUM_TOKENS,
    EnginePath,
    GatewayPath,
    RequestPath,
    RouterPath,
    Timing,
    WorkerPath,
)
from report import Report, arguments
from tokenizers import Tokenizer
from turns import turns

QUESTION = "The mesh's own time per request and per token at one stream, over the engine's"
MODES = {"aggregated": "0", "disaggregated": "1"}
_FLAGS = ("--decode", "1", "--remote-prefill-min-tokens", "1", "--share-kv-memory")
PROMPT_TOKENS = 64
REQUEST_AIM_MS, TOKEN_AIM_MS = 5.0, 0.3
REQUESTS_PER_ROUND = 4
TEXT = "What is the capital of France? The capital of France is Paris. What is 3 + 9? "


class Round:
    """One path's requests in a round."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        paused, *streamed = timings
        self.paused_first_ms = paused.first_ms
        """First token of the first request."""
        self.first_ms = median(timing.first_ms for timing in streamed)
        """First token of the others."""
        self.token_ms = median(timing.token_ms for timing in streamed)
        """Time per token of the others."""


def make_prompt(tokenizer: Tokenizer, number: int) -> list[int]:
    """A prompt of `PROMPT_TOKENS` ids whose first block differs for every number."""
    ids: list[int] = tokenizer.encode(f"{number}. {TEXT * 8}").ids
    return ids[:PROMPT_TOKENS]


async def measure(mesh: Mesh, num_rounds: int) -> dict[str, list[Round]]:
    """Timings of each path, round by round."""
    prefill = [info for name, info in all_members(mesh).items() if name == "prefill-0"]
    parts = mesh.parts()
    decode = parts["decode-0"]
    paths: dict[str, RequestPath] = {
        "gateway": GatewayPath(mesh),
        "router": RouterPath(parts["router"]),
        "worker": WorkerPath(decode, plan_of(prefill) if prefill else None),
        "engine": EnginePath(decode),
    }
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompts = (make_prompt(tokenizer, number) for number in count())
    rounds: dict[str, list[Round]] = {name: [] for name in paths}
    try:
        # The first round only warms up.
        for number in range(num_rounds + 1):
            for name in turns(list(paths), number):
                taken = [await paths[name].run(next(prompts)) for _ in range(REQUESTS_PER_ROUND)]
                if number:
                    rounds[name].append(Round(taken))
    finally:
        for path in paths.values():
            await path.close()
    return rounds


def add_figures(report: Report, mode: str, rounds: dict[str, list[Round]]) -> None:
    """Times of each path, then what each adds to the engine's."""
    for name, taken in rounds.items():
        report.add(f"{mode}: {name}, first token", "ms", [one.first_ms for one in taken])
        report.add(f"{mode}: {name}, per token", "ms", [one.token_ms for one in taken])
    engine = rounds.pop("engine")
    for name, taken in rounds.items():
        pairs = list(zip(taken, engine, strict=True))
        whole = name == "gateway"
        report.add(
            f"{mode}: {name} over engine, per request",
            "ms",
            [one.first_ms - base.first_ms for one, base in pairs],
            aim=REQUEST_AIM_MS if whole else None,
        )
        report.add(
            f"{mode}: {name} over engine, per request after a pause",
            "ms",
            [one.paused_first_ms - base.paused_first_ms for one, base in pairs],
        )
        report.add(
            f"{mode}: {name} over engine, per token",
            "ms",
            [one.token_ms - base.token_ms for one, base in pairs],
            aim=TOKEN_AIM_MS if whole else None,
        )


def main() -> None:
    """Measure an aggregated and a disaggregated mesh."""
    quick, path = arguments("mesh_overhead", QUESTION)
    num_rounds = 3 if quick else 20
    settings = {
        "model": "models/demo",
        "rounds": num_rounds,
        "requests_per_round": REQUESTS_PER_ROUND,
        "prompt_tokens": PROMPT_TOKENS,
        "generated_tokens": NUM_TOKENS,
        "disaggregated_kv": "host memory",
    }
    report = Report("mesh_overhead", QUESTION, settings)
    for mode, prefill in MODES.items():
        with Mesh(*_FLAGS, "--prefill", prefill) as mesh:
            mesh.await_ready()
            add_figures(report, mode, asyncio.run(measure(mesh, num_rounds)))
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
