"""Engines and capacity: what each worker runs, holds and takes for it."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import engine, process, requests, routing
from pagemesh.telemetry.metrics.specs import Process
from tools.monitoring.panel import (
    REQUESTS_PER_SECOND,
    SHOWN,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Row,
    Target,
)
from tools.monitoring.query import ratio

_WORKERS: Final = (Process.PREFILL, Process.DECODE)
_EACH: Final = "{{component}} {{instance}}"
_BY: Final = ["component", "instance"]

BOARD: Final = Board(
    "pagemesh-engines",
    "pagemesh / engines and capacity",
    "What each worker runs, holds, and takes for it: whether there are enough of them.",
    [
        Row(
            "Batches",
            [
                Panel(
                    "Requests running",
                    [Target(SHOWN.series(engine.NUM_REQUESTS_RUNNING, *_WORKERS), _EACH)],
                    [engine.NUM_REQUESTS_RUNNING],
                ),
                Panel(
                    "Requests waiting",
                    [Target(SHOWN.series(engine.NUM_REQUESTS_WAITING, *_WORKERS), _EACH)],
                    [engine.NUM_REQUESTS_WAITING],
                ),
                Panel(
                    "Prompt tokens not yet computed",
                    [Target(SHOWN.series(engine.PENDING_PREFILL_TOKENS), _EACH)],
                    [engine.PENDING_PREFILL_TOKENS],
                ),
                Panel(
                    "Tokens generated",
                    [Target(SHOWN.rate(requests.GENERATION_TOKENS, *_WORKERS, by=_BY), _EACH)],
                    [requests.GENERATION_TOKENS],
                    unit=TOKENS_PER_SECOND,
                ),
                Panel(
                    "Tokens per step, mean",
                    [Target(SHOWN.mean(engine.ITERATION_TOKENS, by=_BY), _EACH)],
                    [engine.ITERATION_TOKENS],
                ),
                Panel(
                    "Time between two tokens, 95 %",
                    [
                        Target(
                            SHOWN.quantile(0.95, requests.INTER_TOKEN_LATENCY, *_WORKERS, by=_BY),
                            _EACH,
                        )
                    ],
                    [requests.INTER_TOKEN_LATENCY],
                ),
            ],
        ),
        Row(
            "KV cache",
            [
                Panel(
                    "Share of blocks in use",
                    [Target(SHOWN.series(engine.KV_CACHE_USAGE, *_WORKERS), _EACH)],
                    [engine.KV_CACHE_USAGE],
                ),
                Panel(
                    "Blocks",
                    [
                        Target(SHOWN.series(engine.KV_BLOCKS), f"all, {_EACH}"),
                        Target(SHOWN.series(engine.KV_BLOCKS_FREE), f"free, {_EACH}"),
                    ],
                    [engine.KV_BLOCKS, engine.KV_BLOCKS_FREE, engine.CACHE_CONFIG_INFO],
                ),
                Panel(
                    "Identical tokens",
                    [Target(SHOWN.series(engine.IDENTICAL_TOKENS), _EACH)],
                    [engine.IDENTICAL_TOKENS],
                ),
                Panel(
                    "Share of slots without KV",
                    [Target(SHOWN.series(engine.KV_WASTE), _EACH)],
                    [engine.KV_WASTE],
                ),
                Panel(
                    "Prefix cache hits",
                    [
                        Target(
                            ratio(
                                SHOWN.rate(requests.PREFIX_CACHE_HITS, *_WORKERS, by=_BY),
                                SHOWN.rate(requests.PREFIX_CACHE_QUERIES, *_WORKERS, by=_BY),
                            ),
                            _EACH,
                        )
                    ],
                    [requests.PREFIX_CACHE_HITS, requests.PREFIX_CACHE_QUERIES],
                    unit="percentunit",
                ),
                Panel(
                    "Prompt tokens by where their KV came from",
                    [
                        Target(
                            SHOWN.rate(
                                requests.PROMPT_TOKENS_BY_SOURCE, Process.DECODE, by=["source"]
                            ),
                            "{{source}}",
                        )
                    ],
                    [requests.PROMPT_TOKENS_BY_SOURCE],
                    unit=TOKENS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Preemptions and swapped requests",
                    [
                        Target(
                            SHOWN.rate(engine.NUM_PREEMPTIONS, *_WORKERS, by=_BY),
                            f"preempted per second, {_EACH}",
                        ),
                        Target(SHOWN.series(engine.NUM_REQUESTS_SWAPPED), f"swapped, {_EACH}"),
                    ],
                    [engine.NUM_PREEMPTIONS, engine.NUM_REQUESTS_SWAPPED],
                    unit="short",
                ),
            ],
        ),
        Row(
            "What prefill costs",
            [
                Panel(
                    "A token",
                    [Target(SHOWN.series(engine.PREFILL_SECONDS_PER_TOKEN), _EACH)],
                    [engine.PREFILL_SECONDS_PER_TOKEN],
                ),
                Panel(
                    "A pair of tokens",
                    [Target(SHOWN.series(engine.PREFILL_SECONDS_PER_PAIR), _EACH)],
                    [engine.PREFILL_SECONDS_PER_PAIR],
                ),
                Panel(
                    "A step",
                    [Target(SHOWN.series(engine.PREFILL_SECONDS_PER_STEP), _EACH)],
                    [engine.PREFILL_SECONDS_PER_STEP],
                ),
            ],
        ),
        Row(
            "Workers and processes",
            [
                Panel(
                    "Workers that routers reach",
                    [
                        Target(
                            f"max by (model_name, role) ({SHOWN.series(routing.WORKERS)})",
                            "{{model_name}} {{role}}",
                        )
                    ],
                    [routing.WORKERS],
                ),
                Panel(
                    "Degraded workers",
                    [
                        Target(
                            f"max by (model_name, role, reason) ({SHOWN.series(routing.WORKERS_DEGRADED)})",
                            "{{model_name}} {{role}}: {{reason}}",
                        )
                    ],
                    [routing.WORKERS_DEGRADED],
                ),
                Panel(
                    "Structured output",
                    [
                        Target(SHOWN.rate(engine.GRAMMAR_REQUESTS), "requests"),
                        Target(SHOWN.rate(engine.GRAMMAR_HITS), "with a grammar that was there"),
                    ],
                    [engine.GRAMMAR_REQUESTS, engine.GRAMMAR_HITS],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "CPU time",
                    [Target(SHOWN.rate(process.CPU_SECONDS, by=_BY), _EACH)],
                    [process.CPU_SECONDS],
                    unit="suffix: cores",
                    note="An engine's own process is not in it.",
                ),
                Panel(
                    "Open files",
                    [Target(SHOWN.series(process.OPEN_FDS), _EACH)],
                    [process.OPEN_FDS, process.MAX_FDS],
                    unit="short",
                ),
                Panel(
                    "Restarts",
                    [Target(f"changes({SHOWN.series(process.START_TIME)}[1h])", _EACH)],
                    [process.START_TIME],
                    unit="short",
                    note="Within the last hour.",
                ),
            ],
        ),
    ],
)
