"""What clients feel, taken apart: queue, prefill, decode; beside what they were promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.telemetry.metrics import requests, routing
from pagemesh.telemetry.metrics.specs import HistogramSpec, Process
from tools.monitoring.panel import SHOWN, Board, Panel, Row, Target

_ROUTER: Final = Process.ROUTER
_SHARES: Final = (0.5, 0.95, 0.99)


def _quantiles(title: str, spec: HistogramSpec) -> Panel:
    targets = [
        Target(SHOWN.quantile(share, spec, _ROUTER), f"p{share * 100:g}") for share in _SHARES
    ]
    return Panel(title, targets, [spec])


def _within(title: str, spec: HistogramSpec, bounds: Sequence[float]) -> Panel:
    targets = [
        Target(SHOWN.within(bound, spec, _ROUTER), f"within {bound:g} s") for bound in bounds
    ]
    return Panel(
        title,
        targets,
        [spec],
        unit="percentunit",
        note="The share of what was observed that kept a promise; choose the line that is yours.",
    )


def _by_model(title: str, spec: HistogramSpec) -> Panel:
    expr = SHOWN.quantile(0.95, spec, _ROUTER, by=["model_name"])
    return Panel(title, [Target(expr, "{{model_name}}")], [spec])


BOARD: Final = Board(
    "pagemesh-latency",
    "pagemesh / latency",
    "What clients feel, taken apart, beside what they were promised. All of it is measured in the routers.",
    [
        Row(
            "Promises",
            [
                _within(
                    "First tokens in time", requests.TIME_TO_FIRST_TOKEN, (0.25, 0.5, 1.0, 2.5)
                ),
                _within("Tokens in time", requests.INTER_TOKEN_LATENCY, (0.025, 0.05, 0.1, 0.2)),
                _within("Answers in time", requests.E2E_REQUEST_LATENCY, (2.0, 5.0, 10.0, 30.0)),
            ],
        ),
        Row(
            "By model, 95 %",
            [
                _by_model("Time to the first token", requests.TIME_TO_FIRST_TOKEN),
                _by_model("Time between two tokens", requests.INTER_TOKEN_LATENCY),
                _by_model("Time to the last token", requests.E2E_REQUEST_LATENCY),
            ],
        ),
        Row(
            "The parts of a request's time",
            [
                Panel(
                    "Mean time by part",
                    [
                        Target(SHOWN.mean(spec, _ROUTER), part)
                        for part, spec in (
                            ("queue", requests.REQUEST_QUEUE_TIME),
                            ("prefill", requests.REQUEST_PREFILL_TIME),
                            ("decode", requests.REQUEST_DECODE_TIME),
                        )
                    ],
                    [
                        requests.REQUEST_QUEUE_TIME,
                        requests.REQUEST_PREFILL_TIME,
                        requests.REQUEST_DECODE_TIME,
                    ],
                    stacked=True,
                ),
                _quantiles("Queue", requests.REQUEST_QUEUE_TIME),
                _quantiles("Prefill", requests.REQUEST_PREFILL_TIME),
                _quantiles("Decode", requests.REQUEST_DECODE_TIME),
                _quantiles("On workers in all", requests.REQUEST_INFERENCE_TIME),
                _quantiles("Mean time per token of an answer", requests.TIME_PER_OUTPUT_TOKEN),
            ],
        ),
        Row(
            "What was asked for",
            [
                _quantiles("Tokens of prompts", requests.REQUEST_PROMPT_TOKENS),
                _quantiles("Tokens of prompts that were computed", requests.PREFILL_KV_COMPUTED),
                _quantiles("Tokens of answers", requests.REQUEST_GENERATION_TOKENS),
                _quantiles("max_tokens", requests.REQUEST_PARAMS_MAX_TOKENS),
                _quantiles("Answers per request", requests.REQUEST_PARAMS_N),
                _quantiles("Longest answer", requests.REQUEST_MAX_GENERATION_TOKENS),
            ],
        ),
        Row(
            "Pauses",
            [
                Panel(
                    "Pause of requests that moved to another worker",
                    [
                        Target(SHOWN.quantile(share, routing.MIGRATION_PAUSE), f"p{share * 100:g}")
                        for share in _SHARES
                    ],
                    [routing.MIGRATION_PAUSE],
                ),
            ],
        ),
    ],
)
