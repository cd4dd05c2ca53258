"""KV on its way, the index, and what routing makes of them: the mesh works, but slower than it could."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import kvstore, routing, transfer
from tools.monitoring.alert import Alert
from tools.monitoring.recording import RULES

ALERTS: Final = [
    Alert(
        "PagemeshWorkersDegraded",
        f"max by (model_name, role, reason) ({RULES.series(routing.WORKERS_DEGRADED)}) > 0",
        "5m",
        "warning",
        "Workers hash KV blocks otherwise than the router",
        "{{ $value }} {{ $labels.role }} workers of {{ $labels.model_name }} get no credit for what they hold: "
        "{{ $labels.reason }} differs.",
        [
            "`pagemesh doctor` names them, and says what to change.",
            "Mostly: give router and workers the same model folder and version.",
        ],
        [routing.WORKERS_DEGRADED],
    ),
    Alert(
        "PagemeshTransfersFail",
        f"{RULES.rate(transfer.KV_IMPORT_FAILURES, by=['rpc', 'reason'])} > 0.1",
        "10m",
        "warning",
        "KV does not come from other workers",
        "{{ $value | humanize }} streams of {{ $labels.rpc }} per second fail: {{ $labels.reason }}. What is missing "
        "is computed again.",
        [
            "The receiving worker's log names the sender.",
            "`pagemesh doctor` tries the ways between workers: a NetworkPolicy or firewall may forbid them.",
        ],
        [transfer.KV_IMPORT_FAILURES],
    ),
    Alert(
        "PagemeshKvDamaged",
        f"sum by (component, instance) (increase({RULES.series(transfer.KV_REJECTED, reason='KV_WRONG_CHECKSUM')}[1h]))"
        " > 0",
        "0m",
        "critical",
        "KV was damaged on its way",
        "{{ $labels.instance }} refused {{ $value | humanize }} messages with a wrong checksum within an hour. None of "
        "it was used.",
        [
            "The worker's log names the sender. Bytes do not change by themselves: look at memory (ECC counters) and "
            "network cards of both machines.",
            "If it is one sender, stop it until it was looked at.",
        ],
        [transfer.KV_REJECTED],
    ),
    Alert(
        "PagemeshTransfersExposed",
        "mesh:kv_transfer_exposed_seconds:p95_5m > 1",
        "15m",
        "warning",
        "Requests wait for KV behind their first token",
        "5 % of the remote prefills keep their request waiting for more than {{ $value | humanizeDuration }}.",
        [
            "Look at pagemesh:link_bytes_per_second: the network between prefill and decode workers.",
            "Workers on one host should read each other's memory: --share-kv-memory.",
            "Routing learns from it: with slow links more prompts are computed on decode workers.",
        ],
        [transfer.KV_TRANSFER_EXPOSED_SECONDS],
    ),
    Alert(
        "PagemeshRoutingWithoutIndex",
        "mesh:routing_without_index:ratio_5m > 0.1",
        "10m",
        "warning",
        "Requests are routed without the index",
        "{{ $value | humanizePercentage }} of the lookups have no answer: caches are missed.",
        [
            "Look whether the kvstores run and answer: pagemesh:lookup_seconds, pagemesh:index_lookup_seconds.",
            "If they answer late, raise --lookup-timeout, or give the kvstore a core of its own.",
        ],
        [routing.ROUTING_WITHOUT_INDEX],
    ),
    Alert(
        "PagemeshRoutingRegret",
        "mesh:kv_path_regret_seconds:mean_5m > 1",
        "15m",
        "warning",
        "Routing chooses ways that turn out slower",
        "Prompts are ready {{ $value | humanizeDuration }} later than the best other way had promised, on average.",
        [
            "Compare pagemesh:kv_path_predicted_seconds and pagemesh:kv_path_seconds by path: the path that is late.",
            "A worker that is slower than its like, or a link: pagemesh:prefill_seconds_per_token, "
            "pagemesh:link_bytes_per_second.",
        ],
        [routing.KV_PATH_REGRET_SECONDS],
    ),
    Alert(
        "PagemeshIndexDiverges",
        "mesh:index_divergences:ratio_5m > 0.1",
        "15m",
        "warning",
        "The index is wrong about workers' caches",
        "{{ $value | humanizePercentage }} of the comparisons of index and workers find a difference.",
        [
            "The kvstore's log names the workers. Each difference is healed by a snapshot; that it comes again is odd.",
            "Look at restarts of kvstores, and at blocks that were evicted for want of room.",
        ],
        [kvstore.INDEX_DIVERGENCES, kvstore.INDEX_DIVERGED_BLOCKS],
    ),
    Alert(
        "PagemeshIndexStoreDown",
        f"{RULES.series(kvstore.INDEX_STORE_UP)} == 0",
        "1m",
        "warning",
        "The Redis of the index does not answer",
        "{{ $labels.instance }} does not reach Redis: requests are routed by load.",
        [
            "Look at Redis: whether it runs, its memory, its log.",
            "When it is back, each kvstore writes everything again by itself.",
        ],
        [kvstore.INDEX_STORE_UP],
    ),
]
