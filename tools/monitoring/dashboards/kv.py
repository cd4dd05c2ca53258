"""KV: what caches held of prompts, how it came where it was needed, what the router made of it."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import kvstore, routing, transfer
from pagemesh.telemetry.metrics.specs import Spec
from tools.monitoring.panel import (
    BYTES_PER_SECOND,
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

_QUERIED: Final = SHOWN.rate(routing.PREFIX_TOKENS_QUERIED, lookup="answered")


def _share(title: str, spec: Spec, **labels: str) -> Target:
    return Target(ratio(SHOWN.rate(spec, **labels), _QUERIED), title)


BOARD: Final = Board(
    "pagemesh-kv",
    "pagemesh / KV, index and routing",
    "What caches held of prompts, how KV came where it was needed, and what the router made of it.",
    [
        Row(
            "How much of prompts was cached",
            [
                Panel(
                    "Available, captured, delivered",
                    [
                        _share("available", routing.PREFIX_TOKENS_AVAILABLE),
                        _share("captured", routing.PREFIX_TOKENS_CAPTURED),
                        _share("delivered", routing.PREFIX_TOKENS_DELIVERED, lookup="answered"),
                    ],
                    [
                        routing.PREFIX_TOKENS_AVAILABLE,
                        routing.PREFIX_TOKENS_CAPTURED,
                        routing.PREFIX_TOKENS_DELIVERED,
                    ],
                    unit="percentunit",
                    note="What is lost between the first two is the routing's, between the last two the index's.",
                ),
                Panel(
                    "Decisions by what the chosen way holds",
                    [
                        Target(
                            SHOWN.rate(routing.ROUTING_DECISIONS, by=["policy", "outcome"]),
                            "{{policy}}: {{outcome}}",
                        )
                    ],
                    [routing.ROUTING_DECISIONS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Tokens of prompts by lookup",
                    [
                        Target(
                            SHOWN.rate(routing.PREFIX_TOKENS_QUERIED, by=["lookup"]), "{{lookup}}"
                        )
                    ],
                    [routing.PREFIX_TOKENS_QUERIED],
                    unit=TOKENS_PER_SECOND,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "The way of the KV",
            [
                Panel(
                    "Plans",
                    [Target(SHOWN.rate(routing.KV_PATH_PLANS, by=["path"]), "{{path}}")],
                    [routing.KV_PATH_PLANS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Predicted and taken, mean",
                    [
                        Target(
                            SHOWN.mean(routing.KV_PATH_PREDICTED_SECONDS, by=["path"]),
                            "{{path}} predicted",
                        ),
                        Target(SHOWN.mean(routing.KV_PATH_SECONDS, by=["path"]), "{{path}} taken"),
                    ],
                    [routing.KV_PATH_PREDICTED_SECONDS, routing.KV_PATH_SECONDS],
                ),
                Panel(
                    "Regret",
                    [
                        Target(SHOWN.mean(routing.KV_PATH_REGRET_SECONDS), "mean"),
                        Target(SHOWN.quantile(0.95, routing.KV_PATH_REGRET_SECONDS), "p95"),
                    ],
                    [routing.KV_PATH_REGRET_SECONDS],
                ),
                Panel(
                    "Plans that were overruled",
                    [
                        Target(
                            SHOWN.rate(routing.KV_PATH_OVERRULED, by=["planned", "path"]),
                            "{{planned}} became {{path}}",
                        )
                    ],
                    [routing.KV_PATH_OVERRULED],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Remote prefills by outcome",
                    [Target(SHOWN.rate(transfer.REMOTE_PREFILLS, by=["outcome"]), "{{outcome}}")],
                    [transfer.REMOTE_PREFILLS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    "Pulls by path and outcome",
                    [
                        Target(
                            SHOWN.rate(transfer.KV_PULLS, by=["path", "outcome"]),
                            "{{path}}: {{outcome}}",
                        )
                    ],
                    [transfer.KV_PULLS],
                    unit=REQUESTS_PER_SECOND,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Transfers",
            [
                Panel(
                    "KV transferred",
                    [
                        Target(SHOWN.rate(transfer.KV_BYTES_SENT, by=["rpc"]), "sent by {{rpc}}"),
                        Target(SHOWN.rate(transfer.KV_BYTES_RECEIVED), "received"),
                    ],
                    [transfer.KV_BYTES_SENT, transfer.KV_BYTES_RECEIVED],
                    unit=BYTES_PER_SECOND,
                ),
                Panel(
                    "Exposed transfer",
                    [
                        Target(
                            SHOWN.quantile(share, transfer.KV_TRANSFER_EXPOSED_SECONDS),
                            f"p{share * 100:g}",
                        )
                        for share in (0.5, 0.95, 0.99)
                    ],
                    [transfer.KV_TRANSFER_EXPOSED_SECONDS],
                ),
                Panel(
                    "Links",
                    [
                        Target(
                            SHOWN.series(transfer.LINK_BYTES_PER_SECOND),
                            "{{sender}} to {{instance}}",
                        )
                    ],
                    [transfer.LINK_BYTES_PER_SECOND],
                ),
                Panel(
                    "Latency of links",
                    [
                        Target(
                            SHOWN.series(transfer.LINK_LATENCY_SECONDS),
                            "{{sender}} to {{instance}}",
                        )
                    ],
                    [transfer.LINK_LATENCY_SECONDS],
                ),
                Panel(
                    "Remote prefill, from the call to the last KV",
                    [
                        Target(
                            SHOWN.quantile(share, transfer.REMOTE_PREFILL_SECONDS),
                            f"p{share * 100:g}",
                        )
                        for share in (0.5, 0.95)
                    ],
                    [transfer.REMOTE_PREFILL_SECONDS],
                ),
                Panel(
                    "KV streams that failed",
                    [
                        Target(
                            SHOWN.rate(transfer.KV_IMPORT_FAILURES, by=["rpc", "reason"]),
                            "{{rpc}}: {{reason}}",
                        )
                    ],
                    [transfer.KV_IMPORT_FAILURES],
                    unit=PER_SECOND,
                ),
            ],
        ),
        Row(
            "Index",
            [
                Panel(
                    "Blocks",
                    [
                        Target(SHOWN.series(kvstore.INDEX_BLOCKS), "held {{instance}}"),
                        Target(
                            SHOWN.series(kvstore.INDEX_DISTINCT_BLOCKS), "distinct {{instance}}"
                        ),
                    ],
                    [kvstore.INDEX_BLOCKS, kvstore.INDEX_DISTINCT_BLOCKS],
                ),
                Panel(
                    "Memory",
                    [Target(SHOWN.series(kvstore.INDEX_BYTES), "{{instance}}")],
                    [kvstore.INDEX_BYTES, kvstore.INDEX_BYTES_PER_BLOCK],
                ),
                Panel(
                    "Events",
                    [
                        Target(SHOWN.rate(kvstore.INDEX_BLOCKS_STORED), "stored"),
                        Target(SHOWN.rate(kvstore.INDEX_BLOCKS_REMOVED), "removed"),
                        Target(SHOWN.rate(kvstore.INDEX_BLOCKS_EVICTED), "evicted from the index"),
                        Target(SHOWN.rate(kvstore.INDEX_BLOCKS_REFUSED), "refused"),
                    ],
                    [
                        kvstore.INDEX_BLOCKS_STORED,
                        kvstore.INDEX_BLOCKS_REMOVED,
                        kvstore.INDEX_BLOCKS_EVICTED,
                        kvstore.INDEX_BLOCKS_REFUSED,
                    ],
                    unit="suffix: blocks/s",
                ),
                Panel(
                    "Lookups",
                    [
                        Target(
                            SHOWN.rate(routing.LOOKUP_SECONDS, by=["outcome"], ending="_count"),
                            "{{outcome}}",
                        )
                    ],
                    [routing.LOOKUP_SECONDS, routing.ROUTING_WITHOUT_INDEX],
                    unit=REQUESTS_PER_SECOND,
                ),
                Panel(
                    "Time of lookups and decisions, 95 %",
                    [
                        Target(SHOWN.quantile(0.95, routing.LOOKUP_SECONDS), "lookup, router"),
                        Target(SHOWN.quantile(0.95, kvstore.INDEX_LOOKUP_SECONDS), "lookup, index"),
                        Target(SHOWN.quantile(0.95, routing.ROUTING_SECONDS), "decision"),
                    ],
                    [routing.LOOKUP_SECONDS, kvstore.INDEX_LOOKUP_SECONDS, routing.ROUTING_SECONDS],
                ),
                Panel(
                    "Divergence",
                    [
                        Target(SHOWN.rate(kvstore.INDEX_DIGESTS), "comparisons"),
                        Target(SHOWN.rate(kvstore.INDEX_DIVERGENCES), "differences"),
                        Target(
                            SHOWN.rate(kvstore.INDEX_DIVERGED_BLOCKS, by=["kind"]),
                            "blocks {{kind}}",
                        ),
                    ],
                    [
                        kvstore.INDEX_DIGESTS,
                        kvstore.INDEX_DIVERGENCES,
                        kvstore.INDEX_DIVERGED_BLOCKS,
                    ],
                    unit=PER_SECOND,
                ),
            ],
        ),
    ],
)
