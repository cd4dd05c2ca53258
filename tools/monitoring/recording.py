"""Recording rules: what dashboards and alerts ask again and again, and what autoscalers want to know."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagemesh.telemetry.metrics import admission, engine, kvstore, requests, routing, transfer
from pagemesh.telemetry.metrics.specs import Process
from tools.monitoring.query import Queries, ratio

RULES: Final = Queries("5m")
ROUTER, DECODE, KVSTORE = Process.ROUTER, Process.DECODE, Process.KVSTORE
_MODEL: Final = ["model_name"]


class RecordingRule(NamedTuple):
    """level:metric:operation, as Prometheus' own advice has it."""

    name: str
    expr: str
    help: str


def _quantile(name: str, share: float, expr: str, what: str) -> RecordingRule:
    return RecordingRule(f"model:{name}:p{share * 100:g}_5m", expr, what)


RECORDING_RULES: Final = [
    RecordingRule(
        "model:num_requests_running:sum",
        RULES.total(engine.NUM_REQUESTS_RUNNING, DECODE, by=_MODEL),
        "Requests in the batches of all decode workers.",
    ),
    RecordingRule(
        "model:num_requests_waiting:sum",
        f"{RULES.total(engine.NUM_REQUESTS_WAITING, DECODE, by=_MODEL)}"
        f" + {RULES.total(admission.REQUESTS_QUEUED, ROUTER, by=_MODEL)}",
        "Requests that wait, on decode workers and in all routers, each counted once. Scale decode workers by this.",
    ),
    RecordingRule(
        "model:kv_cache_usage:avg",
        f"avg by (model_name) ({RULES.series(engine.KV_CACHE_USAGE, DECODE)})",
        "Mean share of KV blocks that requests own on decode workers. Scale decode workers by this, too.",
    ),
    RecordingRule(
        "model:pending_prefill_tokens:sum",
        RULES.total(engine.PENDING_PREFILL_TOKENS, by=_MODEL),
        "Prompt tokens that are to be computed, on all workers. Scale prefill workers by this.",
    ),
    RecordingRule(
        "model:prompt_tokens:rate5m",
        RULES.rate(requests.PROMPT_TOKENS, ROUTER, by=_MODEL),
        "Prompt tokens per second.",
    ),
    RecordingRule(
        "model:generation_tokens:rate5m",
        RULES.rate(requests.GENERATION_TOKENS, ROUTER, by=_MODEL),
        "Tokens generated per second.",
    ),
    RecordingRule(
        "model:prompt_tokens_cached:ratio_5m",
        ratio(
            RULES.rate(requests.PROMPT_TOKENS_CACHED, ROUTER, by=_MODEL),
            RULES.rate(requests.PROMPT_TOKENS, ROUTER, by=_MODEL),
        ),
        "Share of prompt tokens that nobody had to compute.",
    ),
    RecordingRule(
        "model:requests_ended:rate5m",
        RULES.rate(requests.REQUEST_SUCCESS, ROUTER, by=_MODEL),
        "Requests that ended per second, whatever the reason.",
    ),
    RecordingRule(
        "model:requests_failed:ratio_5m",
        ratio(
            RULES.rate(requests.REQUEST_SUCCESS, ROUTER, by=_MODEL, finished_reason="error"),
            RULES.rate(requests.REQUEST_SUCCESS, ROUTER, by=_MODEL),
        ),
        "Share of them that ended with an error.",
    ),
    RecordingRule(
        "model:requests_aborted:ratio_5m",
        ratio(
            RULES.rate(requests.REQUEST_SUCCESS, ROUTER, by=_MODEL, finished_reason="abort"),
            RULES.rate(requests.REQUEST_SUCCESS, ROUTER, by=_MODEL),
        ),
        "Share of them that their clients gave up.",
    ),
    *(
        _quantile(name, share, RULES.quantile(share, spec, ROUTER, by=_MODEL), what)
        for name, spec, what in (
            (
                "time_to_first_token_seconds",
                requests.TIME_TO_FIRST_TOKEN,
                "Quantile of the time to the first token, as clients see it.",
            ),
            (
                "inter_token_latency_seconds",
                requests.INTER_TOKEN_LATENCY,
                "Quantile of the time between two tokens, as clients see it.",
            ),
            (
                "e2e_request_latency_seconds",
                requests.E2E_REQUEST_LATENCY,
                "Quantile of the time to the last token, as clients see it.",
            ),
        )
        for share in (0.5, 0.95, 0.99)
    ),
    RecordingRule(
        "mesh:kv_bytes_received:rate5m",
        RULES.rate(transfer.KV_BYTES_RECEIVED),
        "KV bytes per second that workers received from each other.",
    ),
    RecordingRule(
        "mesh:kv_transfer_exposed_seconds:p95_5m",
        RULES.quantile(0.95, transfer.KV_TRANSFER_EXPOSED_SECONDS),
        "Quantile of the time for which a first token was ahead of its KV.",
    ),
    RecordingRule(
        "mesh:kv_path_regret_seconds:mean_5m",
        RULES.mean(routing.KV_PATH_REGRET_SECONDS),
        "Mean time by which the chosen way was later than the best other one had promised.",
    ),
    RecordingRule(
        "mesh:routing_without_index:ratio_5m",
        ratio(
            RULES.rate(routing.ROUTING_WITHOUT_INDEX),
            RULES.rate(routing.LOOKUP_SECONDS, ending="_count"),
        ),
        "Share of lookups that had no answer.",
    ),
    RecordingRule(
        "mesh:index_divergences:ratio_5m",
        ratio(RULES.rate(kvstore.INDEX_DIVERGENCES), RULES.rate(kvstore.INDEX_DIGESTS)),
        "Share of comparisons in which the index and a worker differed.",
    ),
    RecordingRule(
        "mesh:requests_refused:rate5m",
        RULES.rate(admission.REQUESTS_REFUSED, by=["reason"]),
        "Requests per second that were not let in, by reason.",
    ),
    # What guides write in queries and autoscalers: the names of then, with underscores for the colons.
    RecordingRule(
        "vllm_gpu_cache_usage_perc",
        RULES.series(engine.KV_CACHE_USAGE, DECODE),
        "vllm:kv_cache_usage_perc of each decode worker.",
    ),
    RecordingRule(
        "vllm_num_requests_waiting",
        f"{RULES.series(engine.NUM_REQUESTS_WAITING, DECODE)}"
        f" or {RULES.series(admission.REQUESTS_QUEUED, ROUTER)}",
        "Requests that wait on each decode worker and in each router: each request counted once in their sum.",
    ),
    RecordingRule(
        "vllm_e2e_request_latency_seconds_bucket",
        RULES.series(requests.E2E_REQUEST_LATENCY, ROUTER, ending="_bucket"),
        "vllm:e2e_request_latency_seconds_bucket of each router.",
    ),
    RecordingRule(
        "gpu_utilization",
        f"100 * {RULES.series(engine.GPU_UTILIZATION)}",
        "Percent of the time in which each worker's GPU computed something; nothing without GPUs.",
    ),
]
