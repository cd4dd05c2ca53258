"""The mesh at a glance: is it well, what does it do, who waits."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import admission, engine, process, requests, routing, transfer
from pagemesh.telemetry.metrics.specs import Process
from tools.monitoring.panel import (
    PER_SECOND,
    REQUESTS_PER_SECOND,
    SHOWN,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Row,
    Target,
)
from tools.monitoring.query import ratio

_ROUTER: Final = Process.ROUTER
_DECODE: Final = Process.DECODE

BOARD: Final = Board(
    "pagemesh-overview",
    "pagemesh / overview",
    "Is the mesh well, what does it do, and who waits.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Processes up",
                    [Target('sum (up{component!="",instance=~"$instance"})', "up")],
                    [],
                    unit="short",
                    kind="stat",
                    note="Processes of the mesh that Prometheus can scrape.",
                ),
                Panel(
                    "Decode workers",
                    [
                        Target(
                            f"max by (model_name) ({SHOWN.series(routing.WORKERS, role='decode')})",
                            "{{model_name}}",
                        )
                    ],
                    [routing.WORKERS],
                    kind="stat",
                ),
                Panel(
                    "Prefill workers",
                    [
                        Target(
                            f"max by (model_name) ({SHOWN.series(routing.WORKERS, role='prefill')})",
                            "{{model_name}}",
                        )
                    ],
                    [routing.WORKERS],
                    kind="stat",
                ),
                Panel(
                    "Requests per second",
                    [Target(SHOWN.rate(requests.REQUEST_SUCCESS, _ROUTER), "ended")],
                    [requests.REQUEST_SUCCESS],
                    unit=REQUESTS_PER_SECOND,
                    kind="stat",
                ),
                Panel(
                    "Errors",
                    [
                        Target(
                            ratio(
                                SHOWN.rate(
                                    requests.REQUEST_SUCCESS, _ROUTER, finished_reason="error"
                                ),
                                SHOWN.rate(requests.REQUEST_SUCCESS, _ROUTER),
                            ),
                            "errors",
                        )
                    ],
                    [requests.REQUEST_SUCCESS],
                    unit="percentunit",
                    kind="stat",
                ),
                Panel(
                    "Prompt tokens cached",
                    [
                        Target(
                            ratio(
                                SHOWN.rate(requests.PROMPT_TOKENS_CACHED, _ROUTER),
                                SHOWN.rate(requests.PROMPT_TOKENS, _ROUTER),
                            ),
                            "cached",
                        )
                    ],
                    [requests.PROMPT_TOKENS_CACHED],
                    unit="percentunit",
                    kind="stat",
                ),
            ],
        ),
        Row(
            "What it does",
            [
                Panel(
                    "Requests by how they ended",
                    [
                        Target(
                            SHOWN.rate(requests.REQUEST_SUCCESS, _ROUTER, by=["finished_reason"]),
                            "{{finished_reason}}",
                        )
                    ],
                    [requests.REQUEST_SUCCESS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Tokens",
                    [
                        Target(SHOWN.rate(requests.PROMPT_TOKENS, _ROUTER), "prompts"),
                        Target(
                            SHOWN.rate(requests.PROMPT_TOKENS_CACHED, _ROUTER), "of them, cached"
                        ),
                        Target(SHOWN.rate(requests.GENERATION_TOKENS, _ROUTER), "generated"),
                    ],
                    [
                        requests.PROMPT_TOKENS,
                        requests.PROMPT_TOKENS_CACHED,
                        requests.GENERATION_TOKENS,
                    ],
                    unit=TOKENS_PER_SECOND,
                ),
                Panel(
                    "Requests refused",
                    [Target(SHOWN.rate(admission.REQUESTS_REFUSED, by=["reason"]), "{{reason}}")],
                    [admission.REQUESTS_REFUSED],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Who waits, and for what",
            [
                Panel(
                    "Requests",
                    [
                        Target(SHOWN.total(engine.NUM_REQUESTS_RUNNING, _DECODE), "running"),
                        Target(
                            SHOWN.total(engine.NUM_REQUESTS_WAITING, _DECODE), "waiting on workers"
                        ),
                        Target(SHOWN.total(admission.REQUESTS_QUEUED), "waiting in routers"),
                    ],
                    [
                        engine.NUM_REQUESTS_RUNNING,
                        engine.NUM_REQUESTS_WAITING,
                        admission.REQUESTS_QUEUED,
                    ],
                ),
                Panel(
                    "Time to the first token",
                    [
                        Target(
                            SHOWN.quantile(share, requests.TIME_TO_FIRST_TOKEN, _ROUTER),
                            f"p{share * 100:g}",
                        )
                        for share in (0.5, 0.95, 0.99)
                    ],
                    [requests.TIME_TO_FIRST_TOKEN],
                ),
                Panel(
                    "Time between two tokens",
                    [
                        Target(
                            SHOWN.quantile(share, requests.INTER_TOKEN_LATENCY, _ROUTER),
                            f"p{share * 100:g}",
                        )
                        for share in (0.5, 0.95, 0.99)
                    ],
                    [requests.INTER_TOKEN_LATENCY],
                ),
            ],
        ),
        Row(
            "What went wrong",
            [
                Panel(
                    "Requests that lost their worker",
                    [Target(SHOWN.rate(routing.REQUESTS_RESUBMITTED, by=["reason"]), "{{reason}}")],
                    [routing.REQUESTS_RESUBMITTED],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "KV that was refused, and streams that failed",
                    [
                        Target(SHOWN.rate(transfer.KV_REJECTED), "messages refused"),
                        Target(
                            SHOWN.rate(transfer.KV_IMPORT_FAILURES, by=["rpc"]), "{{rpc}} failed"
                        ),
                    ],
                    [transfer.KV_REJECTED, transfer.KV_IMPORT_FAILURES],
                    unit=PER_SECOND,
                ),
                Panel(
                    "Memory of the processes",
                    [Target(SHOWN.series(process.RESIDENT_MEMORY), "{{component}} {{instance}}")],
                    [process.RESIDENT_MEMORY],
                    note="An engine's own process is not in it.",
                ),
            ],
        ),
    ],
)
