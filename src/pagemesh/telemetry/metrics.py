"""Every metric of pagemesh: name, help, labels. Nothing else in the project creates one.

Names are vLLM's where vLLM has one, with its label `model_name`, so that dashboards, alerts and
autoscalers made for vLLM work unchanged; ours are `pagemesh:*`. Counters are exported with the suffix
`_total`, which is not part of the names here.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

from pagemesh.telemetry.metric_specs import (
    EXPOSED_BUCKETS,
    LOOKUP_BUCKETS,
    REQUEST_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
    CounterSpec,
    GaugeSpec,
    HistogramSpec,
)

_MODEL: Final = ("model_name",)

NUM_REQUESTS_RUNNING: Final = GaugeSpec(
    "vllm:num_requests_running", "Requests in the running batch.", _MODEL
)
NUM_REQUESTS_WAITING: Final = GaugeSpec(
    "vllm:num_requests_waiting", "Requests waiting for blocks, KV or a place in the batch.", _MODEL
)
REQUEST_QUEUE_TIME: Final = HistogramSpec(
    "vllm:request_queue_time_seconds",
    "Time in the router's queue: 0 for requests that workers had room for.",
    REQUEST_BUCKETS,
    _MODEL,
)
REQUESTS_QUEUED: Final = GaugeSpec(
    "pagemesh:requests_queued", "Requests that wait in the router until workers have room.", _MODEL
)
KV_CACHE_USAGE: Final = GaugeSpec(
    "vllm:kv_cache_usage_perc", "Share of KV blocks that requests own; 1 means all.", _MODEL
)
TIME_TO_FIRST_TOKEN: Final = HistogramSpec(
    "vllm:time_to_first_token_seconds",
    "From submission to the first token.",
    TTFT_BUCKETS,
    _MODEL,
)
INTER_TOKEN_LATENCY: Final = HistogramSpec(
    "vllm:inter_token_latency_seconds",
    "Time between two tokens of a request.",
    TOKEN_BUCKETS,
    _MODEL,
)
TIME_PER_OUTPUT_TOKEN: Final = HistogramSpec(
    "vllm:request_time_per_output_token_seconds",
    "Mean time per token after the first, one observation per request.",
    TOKEN_BUCKETS,
    _MODEL,
)
E2E_REQUEST_LATENCY: Final = HistogramSpec(
    "vllm:e2e_request_latency_seconds",
    "From submission to the last token.",
    REQUEST_BUCKETS,
    _MODEL,
)
PROMPT_TOKENS: Final = CounterSpec(
    "vllm:prompt_tokens", "Prompt tokens of requests that got a first token.", _MODEL
)
GENERATION_TOKENS: Final = CounterSpec("vllm:generation_tokens", "Tokens generated.", _MODEL)
REQUEST_SUCCESS: Final = CounterSpec(
    "vllm:request_success",
    "Requests ended, by reason: stop, length, abort or error.",
    (*_MODEL, "finished_reason"),
)
PREFIX_CACHE_QUERIES: Final = CounterSpec(
    "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", _MODEL
)
PREFIX_CACHE_HITS: Final = CounterSpec(
    "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", _MODEL
)
KV_BLOCKS: Final = GaugeSpec("pagemesh:kv_blocks", "KV blocks in the pool.", _MODEL)
KV_BLOCKS_FREE: Final = GaugeSpec(
    "pagemesh:kv_blocks_free", "KV blocks that no request owns, cached ones included.", _MODEL
)
NUM_REQUESTS_SWAPPED: Final = GaugeSpec(
    "vllm:num_requests_swapped", "Waiting requests whose KV is in the swap space.", _MODEL
)
NUM_PREEMPTIONS: Final = CounterSpec(
    "vllm:num_preemptions", "Times that a request lost its blocks to another.", _MODEL
)
GRAMMAR_REQUESTS: Final = CounterSpec(
    "pagemesh:grammar_requests", "Requests for structured output.", _MODEL
)
GRAMMAR_HITS: Final = CounterSpec(
    "pagemesh:grammar_hits", "Of these, those whose grammar had been compiled before.", _MODEL
)
GRAMMAR_WAIT_SECONDS: Final = CounterSpec(
    "pagemesh:grammar_wait_seconds",
    "Seconds that all others waited until their grammars were compiled or refused.",
    _MODEL,
)
KV_WASTE: Final = GaugeSpec(
    "pagemesh:kv_waste",
    "Share of the token slots in blocks that requests own that hold no KV.",
    _MODEL,
)
PENDING_PREFILL_TOKENS: Final = GaugeSpec(
    "pagemesh:pending_prefill_tokens", "Prompt tokens not yet computed, over all requests.", _MODEL
)
PREFILL_SECONDS_PER_TOKEN: Final = GaugeSpec(
    "pagemesh:prefill_seconds_per_token",
    "What a token of a prompt costs by itself, as measured; 0 before the first prompt.",
    _MODEL,
)
PREFILL_SECONDS_PER_PAIR: Final = GaugeSpec(
    "pagemesh:prefill_seconds_per_pair",
    "What a token of a prompt costs for each token that it attends to, as measured.",
    _MODEL,
)
PREFILL_SECONDS_PER_STEP: Final = GaugeSpec(
    "pagemesh:prefill_seconds_per_step",
    "What a step with prompts costs besides, with the decodes that run now, as measured.",
    _MODEL,
)
LINK_BYTES_PER_SECOND: Final = GaugeSpec(
    "pagemesh:link_bytes_per_second",
    "KV bytes per second from a sender that has them ready, as measured; 0 while unknown.",
    ("sender",),
)
LINK_LATENCY_SECONDS: Final = GaugeSpec(
    "pagemesh:link_latency_seconds",
    "From a call for KV to a sender's first message, as measured.",
    ("sender",),
)
KV_BLOCKS_SENT: Final = CounterSpec(
    "pagemesh:kv_blocks_sent",
    "KV blocks sent to other workers, a prompt's last, partly filled one as well; each with its last layer.",
    ("rpc",),
)
KV_BYTES_SENT: Final = CounterSpec(
    "pagemesh:kv_bytes_sent", "KV bytes sent to other workers.", ("rpc",)
)
KV_TOKENS_RECEIVED: Final = CounterSpec(
    "pagemesh:kv_tokens_received", "Prompt tokens whose KV was received and verified."
)
KV_BYTES_RECEIVED: Final = CounterSpec(
    "pagemesh:kv_bytes_received", "KV bytes received and verified."
)
KV_REJECTED: Final = CounterSpec(
    "pagemesh:kv_rejected", "KV messages that were refused, by what was wrong.", ("reason",)
)
REMOTE_PREFILLS: Final = CounterSpec(
    "pagemesh:remote_prefills",
    "Prompts with a prefill plan, by outcome: complete (all KV came from prefill workers), pulled (some "
    "came out of another worker's cache, the rest was computed here), local (too little was missing), "
    "overruled (sooner computed here than planned), fallback (computed here after failures), finished (the "
    "request was over with its first token, before all KV was there), or cancelled.",
    ("outcome",),
)
KV_IMPORT_FAILURES: Final = CounterSpec(
    "pagemesh:kv_import_failures",
    "Streams of KV that did not deliver what they should, by RPC and reason.",
    ("rpc", "reason"),
)
KV_PULLS: Final = CounterSpec(
    "pagemesh:kv_pulls",
    "Pulls of KV out of another worker's cache, by outcome: complete, partial (there was less than "
    "expected), failed or cancelled.",
    ("outcome",),
)
KV_TRANSFER_EXPOSED_SECONDS: Final = HistogramSpec(
    "pagemesh:kv_transfer_exposed_seconds",
    "Of a complete remote prefill, from the first token's arrival to the last KV; 0 if that came before.",
    EXPOSED_BUCKETS,
)
REMOTE_PREFILL_SECONDS: Final = HistogramSpec(
    "pagemesh:remote_prefill_seconds",
    "From the call to the last KV of a complete remote prefill.",
    TTFT_BUCKETS,
)
KV_PATH_PLANS: Final = CounterSpec(
    "pagemesh:kv_path_plans",
    "Prompts by how the router planned to come by their KV: local (computed on the decode worker), remote "
    "(on a prefill worker), pull (out of another worker's cache, the rest computed on the decode worker) or "
    "remote_pull (likewise, on a prefill worker).",
    ("path",),
)
KV_PATH_OVERRULED: Final = CounterSpec(
    "pagemesh:kv_path_overruled",
    "Prompts whose KV came another way than planned: a worker failed, or the decode worker knew better.",
    ("planned", "path"),
)
KV_PATH_PREDICTED_SECONDS: Final = HistogramSpec(
    "pagemesh:kv_path_predicted_seconds",
    "What was predicted for the planned way, until the decode worker can go on by itself.",
    TTFT_BUCKETS,
    ("path",),
)
KV_PATH_SECONDS: Final = HistogramSpec(
    "pagemesh:kv_path_seconds",
    "From submission until the decode worker could go on by itself, by the way that was taken.",
    TTFT_BUCKETS,
    ("path",),
)
KV_PATH_REGRET_SECONDS: Final = HistogramSpec(
    "pagemesh:kv_path_regret_seconds",
    "By how much later that was than the best other way had promised; 0 when it was not.",
    TTFT_BUCKETS,
)
PREFIX_TOKENS_QUERIED: Final = CounterSpec(
    "pagemesh:prefix_tokens_queried",
    "Tokens of prompts that a prefix cache could serve, by what the index said of them before they were routed: "
    "answered, failed (refused, or no answer in time) or skipped (nothing to ask for, or no need to know), and by "
    "the way on which their KV came.",
    (*_MODEL, "path", "lookup"),
)
PREFIX_TOKENS_DELIVERED: Final = CounterSpec(
    "pagemesh:prefix_tokens_delivered",
    "Of these, those whose KV came out of a prefix cache: nobody computed it for the request.",
    (*_MODEL, "path", "lookup"),
)
PREFIX_TOKENS_AVAILABLE: Final = CounterSpec(
    "pagemesh:prefix_tokens_available",
    "Of the queried tokens whose lookup was answered, those that the cache of any one worker was known to hold.",
    (*_MODEL, "path"),
)
PREFIX_TOKENS_CAPTURED: Final = CounterSpec(
    "pagemesh:prefix_tokens_captured",
    "Of these, those that the cache of a worker on the planned way was known to hold.",
    (*_MODEL, "path"),
)
ROUTING_WITHOUT_INDEX: Final = CounterSpec(
    "pagemesh:routing_without_index",
    "Requests routed by load alone because the kvstore refused to answer, or gave none in time.",
)
REQUESTS_RESUBMITTED: Final = CounterSpec(
    "pagemesh:requests_resubmitted",
    "Requests that went on with another worker, because theirs was lost or is about to stop (drain).",
    ("reason",),
)
MIGRATION_PAUSE: Final = HistogramSpec(
    "pagemesh:migration_pause_seconds",
    "From the loss of a request's worker until another one goes on with it.",
    TTFT_BUCKETS,
)
REQUESTS_IN_PROGRESS: Final = GaugeSpec(
    "pagemesh:requests_in_progress", "Requests that the router has admitted."
)
REQUESTS_REFUSED: Final = CounterSpec(
    "pagemesh:requests_refused",
    "Requests that the router did not let in: for want of a key, by the limit of their tenant that was reached "
    "(concurrent_requests, requests_per_minute, tokens_per_minute or too_large, for any minute), because too many "
    "waited (queue_full), or would have or had waited beyond their deadline (deadline) or for a worker of which there "
    "was none (no_worker).",
    ("reason",),
)
CALLS_REFUSED: Final = CounterSpec(
    "pagemesh:calls_refused",
    "Calls of other processes that what they are, by their certificates, does not allow.",
    ("method", "roles"),
)
CERTIFICATE_EXPIRY: Final = GaugeSpec(
    "pagemesh:certificate_expiry_timestamp_seconds",
    "When the certificate that this process shows to others expires, in seconds since 1970.",
)
KEY_FILE_READS: Final = CounterSpec(
    "pagemesh:key_file_reads",
    "Times that the key file was read, at the start and changed, and taken or refused; refused, the keys from "
    "before hold.",
    ("outcome",),
)
WORKERS: Final = GaugeSpec(
    "pagemesh:workers", "Workers of the model that the router can reach.", (*_MODEL, "role")
)
WORKERS_DEGRADED: Final = GaugeSpec(
    "pagemesh:workers_degraded",
    "Workers of the model that get no credit for what they hold, because they name KV blocks otherwise than "
    "the router, by the step that differs: template, tokenizer, hashing, or unknown.",
    (*_MODEL, "role", "reason"),
)
KVSTORE_WORKERS: Final = GaugeSpec(
    "pagemesh:kvstore_workers", "Workers that are members, wherever they publish."
)
KVSTORE_REMOTE_WORKERS: Final = GaugeSpec(
    "pagemesh:kvstore_remote_workers", "Members that publish to other replicas of the kvstore."
)
INDEX_STORE_UP: Final = GaugeSpec(
    "pagemesh:index_store_up", "Whether the Redis that the index is kept in answers: 1 or 0."
)
INDEX_BLOCKS: Final = GaugeSpec(
    "pagemesh:index_blocks", "Blocks in the index, counted once for each worker that holds them."
)
INDEX_DISTINCT_BLOCKS: Final = GaugeSpec(
    "pagemesh:index_distinct_blocks", "Blocks in the index, counted once."
)
INDEX_BYTES: Final = GaugeSpec(
    "pagemesh:index_bytes",
    "Memory that the blocks in the index take, in this process or in Redis, measured on some of them.",
)
INDEX_BYTES_PER_BLOCK: Final = GaugeSpec(
    "pagemesh:index_bytes_per_block", "Memory that one block in the index takes."
)
INDEX_BLOCKS_EVICTED: Final = CounterSpec(
    "pagemesh:index_blocks_evicted", "Blocks that the index gave up for want of room."
)
INDEX_BLOCKS_STORED: Final = CounterSpec(
    "pagemesh:index_blocks_stored", "Blocks that workers reported as stored."
)
INDEX_BLOCKS_REMOVED: Final = CounterSpec(
    "pagemesh:index_blocks_removed", "Blocks that workers reported as removed."
)
INDEX_BLOCKS_REFUSED: Final = CounterSpec(
    "pagemesh:index_blocks_refused", "Blocks refused because the worker announced fewer."
)
INDEX_DIGESTS: Final = CounterSpec(
    "pagemesh:index_digests", "Times that the index was compared with a worker's own count."
)
INDEX_DIVERGENCES: Final = CounterSpec(
    "pagemesh:index_divergences", "Of these, those where the two differed."
)
INDEX_DIVERGED_BLOCKS: Final = CounterSpec(
    "pagemesh:index_diverged_blocks",
    "Blocks that a worker held and the index did not know (missing), or the reverse (surplus), as counted "
    "when a snapshot came behind a difference.",
    ("kind",),
)
INDEX_LOOKUP_SECONDS: Final = HistogramSpec(
    "pagemesh:index_lookup_seconds", "Time in the index for one lookup.", LOOKUP_BUCKETS
)

SPANS_DROPPED: Final = CounterSpec(
    "pagemesh:spans_dropped",
    "Spans that were recorded and that no collector took: it was away, or too slow for them.",
)


class Metrics:
    """The metrics of one process, in a registry of its own so that tests can have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[CounterSpec, Counter] = {}
        self._gauges: dict[GaugeSpec, Gauge] = {}
        self._histograms: dict[HistogramSpec, Histogram] = {}
        ProcessCollector(registry=self.registry)

    def counter(self, spec: CounterSpec) -> Counter:
        """The counter of a declaration; the same object every time."""
        if spec not in self._counters:
            self._counters[spec] = Counter(
                spec.name, spec.help, spec.labels, registry=self.registry
            )
        return self._counters[spec]

    def gauge(self, spec: GaugeSpec) -> Gauge:
        """The gauge of a declaration; the same object every time."""
        if spec not in self._gauges:
            self._gauges[spec] = Gauge(spec.name, spec.help, spec.labels, registry=self.registry)
        return self._gauges[spec]

    def histogram(self, spec: HistogramSpec) -> Histogram:
        """The histogram of a declaration; the same object every time."""
        if spec not in self._histograms:
            self._histograms[spec] = Histogram(
                spec.name, spec.help, spec.labels, registry=self.registry, buckets=spec.buckets
            )
        return self._histograms[spec]
