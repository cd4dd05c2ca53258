"""What vLLM says of requests and tokens. A router says it of the whole mesh, a worker of its engine."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.labels import SERVING, VLLM, WORKERS
from pagemesh.telemetry.metrics.specs import CounterSpec, HistogramSpec, Label, Process, Unit

_ROUTER: Final = (Process.ROUTER,)
_LOAD: Final = "requests that wait (vllm:num_requests_waiting) and the rate of requests"

TIME_TO_FIRST_TOKEN: Final = HistogramSpec(
    name="vllm:time_to_first_token_seconds",
    help="From submission to the first token.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    labels=VLLM,
    processes=SERVING,
    look_at="its parts, vllm:request_queue_time_seconds and vllm:request_prefill_time_seconds; then how much "
    "of prompts was cached and pagemesh:kv_transfer_exposed_seconds",
)
INTER_TOKEN_LATENCY: Final = HistogramSpec(
    name="vllm:inter_token_latency_seconds",
    help="Time between two tokens of a request.",
    unit=Unit.SECONDS,
    buckets=buckets.TOKEN,
    labels=VLLM,
    processes=SERVING,
    look_at="requests per engine (vllm:num_requests_running), prompts that are computed between decodes "
    "(vllm:iteration_tokens_total) and preemptions",
)
TIME_PER_OUTPUT_TOKEN: Final = HistogramSpec(
    name="vllm:request_time_per_output_token_seconds",
    help="Mean time per token after the first, one observation per request.",
    unit=Unit.SECONDS,
    buckets=buckets.TOKEN,
    labels=VLLM,
    processes=SERVING,
    look_at="as for vllm:inter_token_latency_seconds; pauses of requests that moved to another worker count here",
)
E2E_REQUEST_LATENCY: Final = HistogramSpec(
    name="vllm:e2e_request_latency_seconds",
    help="From submission to the last token.",
    unit=Unit.SECONDS,
    buckets=buckets.REQUEST,
    labels=VLLM,
    processes=SERVING,
    look_at="the length of answers (vllm:request_generation_tokens), then the time to the first token and that "
    "between two",
)
REQUEST_QUEUE_TIME: Final = HistogramSpec(
    name="vllm:request_queue_time_seconds",
    help="Time in the router's queue: 0 for requests that workers had room for.",
    unit=Unit.SECONDS,
    buckets=buckets.REQUEST,
    labels=VLLM,
    processes=_ROUTER,
    look_at="whether there are workers enough: vllm:kv_cache_usage_perc and vllm:num_requests_running of each",
)
REQUEST_PREFILL_TIME: Final = HistogramSpec(
    name="vllm:request_prefill_time_seconds",
    help="From the end of the router's queue to the first token; on a worker, from submission there. "
    "Of requests that ended well.",
    unit=Unit.SECONDS,
    buckets=buckets.REQUEST,
    labels=VLLM,
    processes=SERVING,
    look_at="pagemesh:pending_prefill_tokens of the workers, the length of prompts and how much of them was cached",
)
REQUEST_DECODE_TIME: Final = HistogramSpec(
    name="vllm:request_decode_time_seconds",
    help="From the first to the last token, of requests that ended well.",
    unit=Unit.SECONDS,
    buckets=buckets.REQUEST,
    labels=VLLM,
    processes=SERVING,
    look_at="the length of answers, then vllm:inter_token_latency_seconds",
)
REQUEST_INFERENCE_TIME: Final = HistogramSpec(
    name="vllm:request_inference_time_seconds",
    help="From the end of the router's queue to the last token; on a worker, from submission there. "
    "Of requests that ended well.",
    unit=Unit.SECONDS,
    buckets=buckets.REQUEST,
    labels=VLLM,
    processes=SERVING,
    look_at="which of its parts it is: prefill or decode",
)
PROMPT_TOKENS: Final = CounterSpec(
    name="vllm:prompt_tokens",
    help="Prompt tokens of requests that got a first token.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="who sends so much: the tenant in the router's and the gateway's logs",
)
PROMPT_TOKENS_CACHED: Final = CounterSpec(
    name="vllm:prompt_tokens_cached",
    help="Of the prompt tokens, those that nobody computed for the request. A router counts caches of the whole "
    "mesh, a worker its own and what it received from other workers.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: high is good. When it falls, pagemesh:prefix_tokens_available tells the workload's part, "
    "pagemesh:prefix_tokens_captured the routing's",
)
PROMPT_TOKENS_BY_SOURCE: Final = CounterSpec(
    name="vllm:prompt_tokens_by_source",
    help="Prompt tokens by where their KV came from: computed for the request, a cache, or another worker. "
    "For a router, the mesh is one server, and nothing comes from elsewhere.",
    unit=Unit.TOKENS,
    labels=(*VLLM, Label("source", ("local_compute", "local_cache_hit", "external_kv_transfer"))),
    processes=SERVING,
    look_at="the part of local_compute: what prefill costs",
)
PREFILL_KV_COMPUTED: Final = HistogramSpec(
    name="vllm:request_prefill_kv_computed_tokens",
    help="Prompt tokens of a request that were computed for it, of requests that ended well.",
    unit=Unit.TOKENS,
    buckets=buckets.NUM_TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="the length of prompts (vllm:request_prompt_tokens) and how much of them was cached",
)
GENERATION_TOKENS: Final = CounterSpec(
    name="vllm:generation_tokens",
    help="Tokens generated.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: it is what the mesh is for. When it falls under load, vllm:num_preemptions and "
    "vllm:inter_token_latency_seconds",
)
REQUEST_SUCCESS: Final = CounterSpec(
    name="vllm:request_success",
    help="Requests ended, by reason: stop, length, abort or error.",
    unit=Unit.REQUESTS,
    labels=(*VLLM, Label("finished_reason", ("stop", "length", "abort", "error"))),
    processes=SERVING,
    look_at="error: the logs of router and workers. abort: clients that give up, mostly because they wait too long",
)
PREFIX_CACHE_QUERIES: Final = CounterSpec(
    name="vllm:prefix_cache_queries",
    help="Prompt tokens looked up in the prefix cache; a router counts each prompt once, a worker its own cache.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at=_LOAD,
)
PREFIX_CACHE_HITS: Final = CounterSpec(
    name="vllm:prefix_cache_hits",
    help="Prompt tokens found in the prefix cache; for a router, in that of any worker on the prompt's way.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: high is good. When it falls, as for vllm:prompt_tokens_cached",
)
EXTERNAL_CACHE_QUERIES: Final = CounterSpec(
    name="vllm:external_prefix_cache_queries",
    help="Prompt tokens that the worker lacked and asked other workers for.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=WORKERS,
    look_at="pagemesh:kv_path_plans: how many prompts are prefilled elsewhere or pulled",
)
EXTERNAL_CACHE_HITS: Final = CounterSpec(
    name="vllm:external_prefix_cache_hits",
    help="Of these, those that were received before the first token was.",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=WORKERS,
    look_at="nothing: high is good. When it falls behind the queries, pagemesh:kv_import_failures",
)
REQUEST_PROMPT_TOKENS: Final = HistogramSpec(
    name="vllm:request_prompt_tokens",
    help="Tokens of a request's prompt, of requests that ended well.",
    unit=Unit.TOKENS,
    buckets=buckets.NUM_TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="whether the prefill workers are enough for it: vllm:request_prefill_time_seconds",
)
REQUEST_GENERATION_TOKENS: Final = HistogramSpec(
    name="vllm:request_generation_tokens",
    help="Tokens of an answer, of requests that ended well.",
    unit=Unit.TOKENS,
    buckets=buckets.NUM_TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="whether the decode workers are enough for it: vllm:kv_cache_usage_perc",
)
REQUEST_MAX_GENERATION_TOKENS: Final = HistogramSpec(
    name="vllm:request_max_num_generation_tokens",
    help="Tokens of the longest answer to a prompt, of requests that ended well.",
    unit=Unit.TOKENS,
    buckets=buckets.NUM_TOKENS,
    labels=VLLM,
    processes=_ROUTER,
    look_at="as for vllm:request_generation_tokens",
)
REQUEST_PARAMS_N: Final = HistogramSpec(
    name="vllm:request_params_n",
    help="Answers that a request asks for, of requests that ended well.",
    unit=Unit.REQUESTS,
    buckets=buckets.ANSWERS,
    labels=VLLM,
    processes=_ROUTER,
    look_at="vllm:num_requests_running: each answer takes a slot on a worker",
)
REQUEST_PARAMS_MAX_TOKENS: Final = HistogramSpec(
    name="vllm:request_params_max_tokens",
    help="max_tokens of a request, or what the context leaves; of requests that ended well.",
    unit=Unit.TOKENS,
    buckets=buckets.NUM_TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="vllm:request_generation_tokens beside it: tenants are charged for what they use, but reserve this",
)
