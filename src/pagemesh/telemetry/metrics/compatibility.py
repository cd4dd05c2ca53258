"""Names that vLLM had once and that dashboards, alerts and scripts still use, each made of a metric of today.

They are compatibility names: nothing here reads them, and `--no-older-metric-names` of a process leaves them out.
`vllm:request_success` is of then and of today.
"""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.labels import SERVING, VLLM
from pagemesh.telemetry.metrics.specs import GaugeSpec, HistogramSpec, Unit

_RATE: Final = (
    "over the last five seconds, or since the page was last read when that is longer ago."
)
_HITS: Final = (
    "Share of all prompt tokens so far that were found in the prefix cache: vllm:prefix_cache_hits of "
    "vllm:prefix_cache_queries. There is one cache, whatever memory it lies in, and both names of then have its rate."
)

GPU_CACHE_USAGE: Final = GaugeSpec(
    name="vllm:gpu_cache_usage_perc",
    help="vllm:kv_cache_usage_perc by its older name: share of KV blocks that requests own, on a GPU or not.",
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="as for vllm:kv_cache_usage_perc",
)
CPU_CACHE_USAGE: Final = GaugeSpec(
    name="vllm:cpu_cache_usage_perc",
    help="pagemesh:swap_space_usage by vLLM's older name: share of the swap space that has KV of preempted requests.",
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="as for pagemesh:swap_space_usage",
)
AVG_PROMPT_THROUGHPUT: Final = GaugeSpec(
    name="vllm:avg_prompt_throughput_toks_per_s",
    help=f"Growth of vllm:prompt_tokens per second, {_RATE}",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="as for vllm:prompt_tokens",
)
AVG_GENERATION_THROUGHPUT: Final = GaugeSpec(
    name="vllm:avg_generation_throughput_toks_per_s",
    help=f"Growth of vllm:generation_tokens per second, {_RATE}",
    unit=Unit.TOKENS,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: it is what the mesh is for",
)
OLDER_TIME_PER_OUTPUT_TOKEN: Final = HistogramSpec(
    name="vllm:time_per_output_token_seconds",
    help="vllm:inter_token_latency_seconds by its older name.",
    unit=Unit.SECONDS,
    buckets=buckets.TOKEN,
    labels=VLLM,
    processes=SERVING,
    look_at="as for vllm:inter_token_latency_seconds",
)
GPU_PREFIX_CACHE_HIT_RATE: Final = GaugeSpec(
    name="vllm:gpu_prefix_cache_hit_rate",
    help=_HITS,
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: high is good. When it falls, as for vllm:prompt_tokens_cached",
)
CPU_PREFIX_CACHE_HIT_RATE: Final = GaugeSpec(
    name="vllm:cpu_prefix_cache_hit_rate",
    help=_HITS,
    unit=Unit.SHARE,
    labels=VLLM,
    processes=SERVING,
    look_at="nothing: high is good. When it falls, as for vllm:prompt_tokens_cached",
)
