"""The state of engines: batch, KV cache, and what was measured of their steps."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.labels import MODEL, SERVING, VLLM, WORKERS
from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, HistogramSpec, Label, Unit

_GPU: Final = (
    *MODEL,
    Label("gpu", source="the worker's GPU, by its UUID"),
)
_NVML: Final = "NVIDIA's driver"

NUM_REQUESTS_RUNNING: Final = GaugeSpec(
    name="vllm:num_requests_running",
    help="Requests in the running batch; for a router, of all decode workers as they last reported it.",
    unit=Unit.REQUESTS,
    labels=VLLM,
    processes=SERVING,
    look_at="vllm:kv_cache_usage_perc beside it: with room left it is only busy",
)
NUM_REQUESTS_WAITING: Final = GaugeSpec(
    name="vllm:num_requests_waiting",
    help="Requests waiting for blocks, KV or a place in the batch; for a router, those on decode workers and those "
    "in its own queue.",
    unit=Unit.REQUESTS,
    labels=VLLM,
    processes=SERVING,
    look_at="whether all decode workers are full (vllm:kv_cache_usage_perc): then there are too few. Scale by this",
)
NUM_WAITING_BY_REASON: Final = GaugeSpec(
    name="vllm:num_requests_waiting_by_reason",
    help="Waiting requests by what they wait for: blocks or a place in the batch, or in a router's queue for a worker "
    "that has them (capacity), or KV that is on its way (deferred).",
    unit=Unit.REQUESTS,
    labels=(*VLLM, Label("reason", ("capacity", "deferred"))),
    processes=SERVING,
    look_at="capacity: as for vllm:num_requests_waiting. deferred: prefill workers and the network, "
    "pagemesh:kv_transfer_exposed_seconds",
)
NUM_REQUESTS_SWAPPED: Final = GaugeSpec(
    name="vllm:num_requests_swapped",
    help="Waiting requests whose KV is in the swap space.",
    unit=Unit.REQUESTS,
    labels=VLLM,
    processes=WORKERS,
    look_at="vllm:num_preemptions: the worker has too few blocks for what it runs",
)
NUM_PREEMPTIONS: Final = CounterSpec(
    name="vllm:num_preemptions",
    help="Times that a request lost its blocks to another; for a router, on decode workers since it knows them.",
    unit=Unit.COUNT,
    labels=VLLM,
    processes=SERVING,
    look_at="vllm:kv_cache_usage_perc; fewer slots (--max-num-seqs), more memory, or another worker",
)
PREEMPTIONS_BY_KIND: Final = CounterSpec(
    name="pagemesh:preemptions",
    help="Times that a request lost its blocks to another, by how its KV comes back: out of the swap space (swap), or "
    "computed again (recompute).",
    unit=Unit.COUNT,
    labels=(*MODEL, Label("kind", ("swap", "recompute"))),
    processes=WORKERS,
    look_at="as for vllm:num_preemptions. recompute beside a --swap-space: it is full, or prompts are computed sooner "
    "than copied",
)
ITERATION_TOKENS: Final = HistogramSpec(
    name="vllm:iteration_tokens_total",
    help="Tokens of an engine step that gave out any: prompts whose first token came with it, and tokens generated.",
    unit=Unit.TOKENS,
    buckets=buckets.STEP_TOKENS,
    labels=VLLM,
    processes=WORKERS,
    look_at="vllm:inter_token_latency_seconds: prompts delay the tokens of those that decode beside them",
)
KV_CACHE_USAGE: Final = GaugeSpec(
    name="vllm:kv_cache_usage_perc",
    help="Share of KV blocks that requests own; 1 means all. For a router, of all decode workers together.",
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="vllm:num_requests_waiting and vllm:num_preemptions: near 1 the worker takes no more. Scale by this",
)
SWAP_SPACE_USAGE: Final = GaugeSpec(
    name="pagemesh:swap_space_usage",
    help="Share of the swap space that has KV of preempted requests; 0 without any. For a router, of all decode workers "
    "together.",
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="vllm:num_preemptions: too few blocks for what runs. At 1 the KV of others is computed again",
)
CACHE_CONFIG_INFO: Final = GaugeSpec(
    name="vllm:cache_config_info",
    help="Always 1; the labels say what the KV cache is like. For a router, one series for each kind of block that "
    "its decode workers have, with the sum of their blocks.",
    unit=Unit.FLAG,
    labels=(
        *VLLM,
        Label("block_size", source="the kinds of KV blocks in the mesh, mostly one"),
        Label("cache_dtype", source="the kinds of KV blocks in the mesh, mostly one"),
        Label("num_gpu_blocks", source="one number for each kind of KV block at a time"),
        Label("kv_cache_size_tokens", source="the blocks' tokens, likewise"),
        Label("kv_cache_max_concurrency", source="the longest requests that fit at once, likewise"),
    ),
    processes=SERVING,
    look_at="nothing: it never changes while the workers stay",
)
IDENTICAL_TOKENS: Final = GaugeSpec(
    name="pagemesh:identical_tokens",
    help="1 when the check at load found the same bits alone, in company and in pieces with the fastest kernels; 0 when "
    "slower ones had to be taken or none keep them.",
    unit=Unit.FLAG,
    labels=MODEL,
    processes=WORKERS,
    look_at="what pagemesh doctor says of the worker, and its log: 0 is a fault of the processor, a driver or a compiler",
)
KV_BLOCKS: Final = GaugeSpec(
    name="pagemesh:kv_blocks",
    help="KV blocks in the pool.",
    unit=Unit.BLOCKS,
    labels=MODEL,
    processes=WORKERS,
    look_at="nothing: it is the size of the KV cache",
)
KV_BLOCKS_FREE: Final = GaugeSpec(
    name="pagemesh:kv_blocks_free",
    help="KV blocks that no request owns, cached ones included.",
    unit=Unit.BLOCKS,
    labels=MODEL,
    processes=WORKERS,
    look_at="nothing: high is idle. When it stays below what pagemesh:kv_blocks says on an idle worker, a stream "
    "still holds blocks",
)
KV_WASTE: Final = GaugeSpec(
    name="pagemesh:kv_waste",
    help="Share of the token slots in blocks that requests own that hold no KV.",
    unit=Unit.SHARE,
    labels=MODEL,
    processes=WORKERS,
    look_at="--block-size: with short prompts, half-filled last blocks are most of it",
)
PENDING_PREFILL_TOKENS: Final = GaugeSpec(
    name="pagemesh:pending_prefill_tokens",
    help="Prompt tokens not yet computed, over all requests.",
    unit=Unit.TOKENS,
    labels=MODEL,
    processes=WORKERS,
    look_at="whether there are prefill workers enough: times pagemesh:prefill_seconds_per_token it is what a new "
    "prompt waits",
)
PREFILL_SECONDS_PER_TOKEN: Final = GaugeSpec(
    name="pagemesh:prefill_seconds_per_token",
    help="What a token of a prompt costs by itself, as measured; 0 before the first prompt.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="other programs on the worker's cores or GPU; workers of one kind should be alike",
)
PREFILL_SECONDS_PER_PAIR: Final = GaugeSpec(
    name="pagemesh:prefill_seconds_per_pair",
    help="What a token of a prompt costs for each token that it attends to, as measured.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="as for pagemesh:prefill_seconds_per_token",
)
PREFILL_SECONDS_PER_STEP: Final = GaugeSpec(
    name="pagemesh:prefill_seconds_per_step",
    help="What a step with prompts costs besides, with the decodes that run now, as measured.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="vllm:num_requests_running: the more decodes, the longer each step",
)
GPU_UTILIZATION: Final = GaugeSpec(
    name="pagemesh:gpu_utilization",
    help="Share of the last moments in which the worker's GPU computed something, for whomever.",
    unit=Unit.SHARE,
    labels=_GPU,
    processes=WORKERS,
    only_with=_NVML,
    look_at="nothing: busy is good. When it is low under load, pagemesh:core_wait_seconds and vllm:num_requests_running",
)
GPU_MEMORY_USED: Final = GaugeSpec(
    name="pagemesh:gpu_memory_used_bytes",
    help="Memory of the worker's GPU that is in use, by whomever.",
    unit=Unit.BYTES,
    labels=_GPU,
    processes=WORKERS,
    only_with=_NVML,
    look_at="--gpu-memory-utilization, and what else runs on the GPU: beside pagemesh:gpu_memory_bytes",
)
GPU_MEMORY: Final = GaugeSpec(
    name="pagemesh:gpu_memory_bytes",
    help="Memory of the worker's GPU.",
    unit=Unit.BYTES,
    labels=_GPU,
    processes=WORKERS,
    only_with=_NVML,
    look_at="nothing: it is the size of the GPU",
)
GRAMMAR_REQUESTS: Final = CounterSpec(
    name="pagemesh:grammar_requests",
    help="Requests for structured output.",
    unit=Unit.REQUESTS,
    labels=MODEL,
    processes=WORKERS,
    look_at="pagemesh:grammar_hits beside it",
)
GRAMMAR_HITS: Final = CounterSpec(
    name="pagemesh:grammar_hits",
    help="Of these, those whose grammar had been compiled before.",
    unit=Unit.REQUESTS,
    labels=MODEL,
    processes=WORKERS,
    look_at="nothing: high is good. When it is low, clients send a new schema with each request",
)
GRAMMAR_WAIT_SECONDS: Final = CounterSpec(
    name="pagemesh:grammar_wait_seconds",
    help="Seconds that all others waited until their grammars were compiled or refused.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="large schemas in requests; the router's log names the tenant",
)
BORROWED_CORE_SECONDS: Final = CounterSpec(
    name="pagemesh:borrowed_core_seconds",
    help="Core-seconds that steps had beyond the worker's share, of other workers of the host that were idle.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="nothing: that cores are used is good. None at all: all workers compute at once, or there is one alone",
)
CORE_WAIT_SECONDS: Final = CounterSpec(
    name="pagemesh:core_wait_seconds",
    help="Seconds that steps waited for cores of the worker's share, which another worker had borrowed.",
    unit=Unit.SECONDS,
    labels=MODEL,
    processes=WORKERS,
    look_at="a hundredth of the time or more: layers take long, give prompts shorter steps (--max-num-batched-tokens)",
)
