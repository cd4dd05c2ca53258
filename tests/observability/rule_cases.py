"""What series make each alert fire, what series do not, and what is recorded of which; in promtool's notation."""

from __future__ import annotations

from typing import Final, NamedTuple

Series = dict[str, str]

_ROUTER: Final = 'component="router",instance="r"'
_MODEL: Final = f'{_ROUTER},model_name="m",engine="0"'
_DECODE: Final = 'component="decode",instance="d"'
_DECODE_MODEL: Final = f'{_DECODE},model_name="m",engine="0"'
_KVSTORE: Final = 'component="kvstore",instance="k"'
_GATEWAY: Final = 'component="gateway",instance="g"'


class AlertCase(NamedTuple):
    """One alert, at one moment."""

    alert: str
    at: str
    firing: Series
    quiet: Series
    too_soon: str = ""
    """A moment when what will fire does not yet; empty where it fires at once."""


class RecordingCase(NamedTuple):
    """One recorded series after ten minutes."""

    record: str
    series: Series
    value: float
    labels: str = '{model_name="m"}'


def _ended(**per_minute: int) -> Series:
    return {
        f'vllm:request_success_total{{{_MODEL},finished_reason="{reason}"}}': f"0+{number}x60"
        for reason, number in per_minute.items()
    }


def _histogram(name: str, labels: str, bound: str, below: str) -> Series:
    """Sixty observations a minute up to one bound, none up to the one below."""
    joined = f"{labels}," if labels else ""
    return {
        f'{name}_bucket{{{joined}le="{below}"}}': "0x60",
        f'{name}_bucket{{{joined}le="{bound}"}}': "0+60x60",
        f'{name}_bucket{{{joined}le="+Inf"}}': "0+60x60",
    }


def _loads(running: int, waiting: int, queued: int) -> Series:
    return {
        f"vllm:num_requests_running{{{_DECODE_MODEL}}}": f"{running}x60",
        f"vllm:num_requests_waiting{{{_DECODE_MODEL}}}": f"{waiting}x60",
        # The router's view has those on workers, too: it must not be counted beside them.
        f"vllm:num_requests_waiting{{{_MODEL}}}": f"{waiting + queued}x60",
        f'pagemesh:requests_queued{{{_ROUTER},model_name="m"}}': f"{queued}x60",
    }


def _refused(**per_minute: int) -> Series:
    return {
        f'pagemesh:requests_refused_total{{{_ROUTER},reason="{reason}"}}': f"0+{number}x60"
        for reason, number in per_minute.items()
    }


def _answers(good: int, bad: int) -> Series:
    name = f"envoy_http_downstream_rq_xx{{{_GATEWAY}"
    return {
        f'{name},envoy_response_code_class="2"}}': f"0+{good}x60",
        f'{name},envoy_response_code_class="5"}}': f"0+{bad}x60",
    }


def _rate_of(part: str, whole: str, number: int, of: int) -> Series:
    return {part: f"0+{number}x60", whole: f"0+{of}x60"}


def _without_index(number: int) -> Series:
    return _rate_of(
        f"pagemesh:routing_without_index_total{{{_ROUTER}}}",
        f'pagemesh:lookup_seconds_count{{{_ROUTER},outcome="answered"}}',
        number,
        60,
    )


def _regret(seconds: int) -> Series:
    return _rate_of(
        f"pagemesh:kv_path_regret_seconds_sum{{{_ROUTER}}}",
        f"pagemesh:kv_path_regret_seconds_count{{{_ROUTER}}}",
        seconds,
        60,
    )


def _divergences(number: int) -> Series:
    return _rate_of(
        f"pagemesh:index_divergences_total{{{_KVSTORE}}}",
        f"pagemesh:index_digests_total{{{_KVSTORE}}}",
        number,
        60,
    )


def _workers(first: int, second: int) -> Series:
    name, labels = "pagemesh:workers", 'model_name="m",role="decode"'
    return {
        f'{name}{{component="router",instance="r1",{labels}}}': f"{first}x60",
        f'{name}{{component="router",instance="r2",{labels}}}': f"{second}x60",
    }


_TTFT: Final = "vllm:time_to_first_token_seconds"
_ITL: Final = "vllm:inter_token_latency_seconds"
_E2E: Final = "vllm:e2e_request_latency_seconds"
_EXPOSED: Final = "pagemesh:kv_transfer_exposed_seconds"
_REJECTED: Final = f"pagemesh:kv_rejected_total{{{_DECODE}"
_LOST: Final = f"pagemesh:requests_resubmitted_total{{{_ROUTER}"
_KEYS: Final = f"pagemesh:key_file_reads_total{{{_ROUTER}"
_CALLS: Final = f'pagemesh:calls_refused_total{{{_DECODE},method="/x",roles="client"}}'
_DEGRADED: Final = (
    f'pagemesh:workers_degraded{{{_ROUTER},model_name="m",role="decode",reason="template"}}'
)
_EXPIRY: Final = f"pagemesh:certificate_expiry_timestamp_seconds{{{_DECODE}}}"
_FAILURES: Final = (
    f'pagemesh:kv_import_failures_total{{{_DECODE},rpc="fetch",reason="UNAVAILABLE"}}'
)
_HEALTHY: Final = f'envoy_cluster_membership_healthy{{{_GATEWAY},envoy_cluster_name="routers"}}'
_DAYS: Final = f"envoy_server_days_until_first_cert_expiring{{{_GATEWAY}}}"
_FDS: Final = {f"process_max_fds{{{_DECODE}}}": "100x60"}
_PREEMPTED: Final = f"vllm:num_preemptions_total{{{_DECODE_MODEL}}}"
_USAGE: Final = f"vllm:kv_cache_usage_perc{{{_DECODE_MODEL}}}"
_GPU: Final = f'{_DECODE},model_name="m",gpu="GPU-a"'
_GPU_USED: Final = f"pagemesh:gpu_memory_used_bytes{{{_GPU}}}"
_GPU_SIZE: Final = f"pagemesh:gpu_memory_bytes{{{_GPU}}}"
_STORE: Final = f"pagemesh:index_store_up{{{_KVSTORE}}}"
_STARTED: Final = f"process_start_time_seconds{{{_DECODE}}}"

ALERT_CASES: Final = [
    AlertCase(
        "PagemeshTargetDown",
        "3m",
        {f"up{{{_DECODE}}}": "1 0x10"},
        {f"up{{{_DECODE}}}": "1x10", 'up{job="other"}': "0x10"},
        too_soon="2m",
    ),
    AlertCase("PagemeshProcessRestarts", "6m", {_STARTED: "1 2 3 4x10"}, {_STARTED: "1 1 2x10"}),
    AlertCase(
        "PagemeshFilesRunOut",
        "11m",
        {f"process_open_fds{{{_DECODE}}}": "81x60", **_FDS},
        {f"process_open_fds{{{_DECODE}}}": "79x60", **_FDS},
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshCertificateExpires",
        "15m",
        {_EXPIRY: f"{6 * 3600}x60"},
        {_EXPIRY: f"{8 * 3600}x60"},
        too_soon="9m",
    ),
    # The first one comes with the series; what was there half an hour ago is no news.
    AlertCase("PagemeshCallsRefused", "20m", {_CALLS: "_x18 1x60"}, {_CALLS: "5x60"}, "17m"),
    AlertCase(
        "PagemeshKeyFileRefused",
        "4m",
        {f'{_KEYS},outcome="refused"}}': "0 0 1x60"},
        {f'{_KEYS},outcome="refused"}}': "1x60", f'{_KEYS},outcome="taken"}}': "0 0 1x60"},
    ),
    AlertCase("PagemeshNoDecodeWorker", "2m", _workers(0, 0), _workers(0, 1), too_soon="0m"),
    AlertCase(
        "PagemeshRequestsFail", "11m", _ended(stop=90, error=10), _ended(stop=98, error=2), "4m"
    ),
    AlertCase(
        "PagemeshClientsGiveUp", "20m", _ended(stop=50, abort=50), _ended(stop=80, abort=20), "14m"
    ),
    AlertCase(
        "PagemeshFirstTokenSlow",
        "15m",
        _histogram(_TTFT, _MODEL, "20.0", "10.0"),
        _histogram(_TTFT, _MODEL, "7.5", "5.0"),
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshTokensSlow",
        "15m",
        _histogram(_ITL, _MODEL, "0.75", "0.5"),
        _histogram(_ITL, _MODEL, "0.3", "0.2"),
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshRequestsSlow",
        "15m",
        _histogram(_E2E, _MODEL, "40.0", "30.0"),
        _histogram(_E2E, _MODEL, "30.0", "20.0"),
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshSuccessLow",
        "21m",
        _ended(stop=990, error=6),
        # Who gives up is no failure.
        _ended(stop=500, error=4, abort=500),
        too_soon="14m",
    ),
    AlertCase("PagemeshQueueLong", "6m", _loads(99, 40, 11), _loads(99, 40, 10), "4m"),
    AlertCase("PagemeshQueueVeryLong", "6m", _loads(99, 90, 11), _loads(99, 90, 10), "4m"),
    AlertCase(
        "PagemeshGpuMemoryFull",
        "12m",
        {_GPU_USED: "77x60", _GPU_SIZE: "80x60"},
        {_GPU_USED: "75x60", _GPU_SIZE: "80x60"},
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshRequestsWait",
        "12m",
        _loads(running=6, waiting=4, queued=8),
        _loads(running=14, waiting=5, queued=8),
        too_soon="9m",
    ),
    AlertCase(
        "PagemeshRequestsRefused",
        "8m",
        _refused(queue_full=30),
        _refused(queue_full=1, requests_per_minute=600),
        too_soon="4m",
    ),
    AlertCase("PagemeshGatewayErrors", "8m", _answers(90, 10), _answers(98, 2), too_soon="4m"),
    AlertCase(
        "PagemeshGatewayWithoutRouter", "3m", {_HEALTHY: "0x60"}, {_HEALTHY: "1x60"}, too_soon="0m"
    ),
    AlertCase(
        "PagemeshGatewayCertificateExpires",
        "65m",
        {_DAYS: "2x90"},
        {_DAYS: "4294967295x90"},
        too_soon="55m",
    ),
    AlertCase(
        "PagemeshWorkersLost",
        "5m",
        {f'{_LOST},reason="lost"}}': "0 0 3x60"},
        {f'{_LOST},reason="lost"}}': "3x60", f'{_LOST},reason="drain"}}': "0+5x60"},
    ),
    AlertCase("PagemeshKvCacheFull", "12m", {_USAGE: "0.97x60"}, {_USAGE: "0.94x60"}, "9m"),
    AlertCase("PagemeshPreemptions", "20m", {_PREEMPTED: "0+12x60"}, {_PREEMPTED: "0+3x60"}, "14m"),
    AlertCase("PagemeshWorkersDegraded", "6m", {_DEGRADED: "1x60"}, {_DEGRADED: "0x60"}, "4m"),
    AlertCase("PagemeshTransfersFail", "14m", {_FAILURES: "0+12x60"}, {_FAILURES: "0+3x60"}, "9m"),
    AlertCase(
        "PagemeshKvDamaged",
        "4m",
        {f'{_REJECTED},reason="KV_WRONG_CHECKSUM"}}': "0 0 1x60"},
        {f'{_REJECTED},reason="KV_WRONG_EPOCH"}}': "0+5x60"},
    ),
    AlertCase(
        "PagemeshTransfersExposed",
        "20m",
        _histogram(_EXPOSED, _DECODE, "2.0", "1.0"),
        _histogram(_EXPOSED, _DECODE, "0.5", "0.2"),
        too_soon="14m",
    ),
    AlertCase("PagemeshRoutingWithoutIndex", "14m", _without_index(20), _without_index(3), "9m"),
    AlertCase("PagemeshRoutingRegret", "20m", _regret(120), _regret(30), too_soon="14m"),
    AlertCase("PagemeshIndexDiverges", "20m", _divergences(12), _divergences(3), too_soon="14m"),
    AlertCase("PagemeshIndexStoreDown", "3m", {_STORE: "0x60"}, {_STORE: "1x60"}, too_soon="0m"),
]

_TOKENS: Final = {
    f"vllm:prompt_tokens_total{{{_MODEL}}}": "0+120x60",
    f"vllm:prompt_tokens_cached_total{{{_MODEL}}}": "0+30x60",
    f"vllm:generation_tokens_total{{{_MODEL}}}": "0+600x60",
    # Workers count the same tokens.
    f"vllm:generation_tokens_total{{{_DECODE_MODEL}}}": "0+600x60",
}
_TWO_WORKERS: Final = {
    f"vllm:kv_cache_usage_perc{{{_DECODE_MODEL}}}": "0.5x60",
    'vllm:kv_cache_usage_perc{component="decode",instance="e",model_name="m",engine="0"}': "0.7x60",
    f"vllm:kv_cache_usage_perc{{{_MODEL}}}": "0.1x60",
}

RECORDING_CASES: Final = [
    RecordingCase("model:num_requests_running:sum", _loads(6, 4, 8), 6),
    RecordingCase("model:num_requests_waiting:sum", _loads(6, 4, 8), 12),
    RecordingCase("model:kv_cache_usage:avg", _TWO_WORKERS, 0.6),
    RecordingCase(
        "model:pending_prefill_tokens:sum",
        {
            f'pagemesh:pending_prefill_tokens{{{_DECODE},model_name="m"}}': "10x60",
            'pagemesh:pending_prefill_tokens{component="prefill",model_name="m"}': "20x60",
        },
        30,
    ),
    RecordingCase("model:prompt_tokens:rate5m", _TOKENS, 2),
    RecordingCase("model:generation_tokens:rate5m", _TOKENS, 10),
    RecordingCase("model:prompt_tokens_cached:ratio_5m", _TOKENS, 0.25),
    RecordingCase("model:requests_ended:rate5m", _ended(stop=54, error=6), 1),
    RecordingCase("model:requests_failed:ratio_5m", _ended(stop=54, error=6), 0.1),
    RecordingCase("model:requests_aborted:ratio_5m", _ended(stop=45, abort=15), 0.25),
    *(
        RecordingCase(f"model:{name}:p{share}_5m", series, 1 + share / 100)
        for name, series in (
            ("time_to_first_token_seconds", _histogram(_TTFT, _MODEL, "2.0", "1.0")),
            ("inter_token_latency_seconds", _histogram(_ITL, _MODEL, "2.0", "1.0")),
            ("e2e_request_latency_seconds", _histogram(_E2E, _MODEL, "2.0", "1.0")),
        )
        for share in (50, 95, 99)
    ),
    RecordingCase(
        "mesh:kv_bytes_received:rate5m",
        {f"pagemesh:kv_bytes_received_total{{{_DECODE}}}": "0+6000x60"},
        100,
        "{}",
    ),
    RecordingCase(
        "mesh:kv_transfer_exposed_seconds:p95_5m",
        _histogram(_EXPOSED, _DECODE, "2.0", "1.0"),
        1.95,
        "{}",
    ),
    RecordingCase("mesh:kv_path_regret_seconds:mean_5m", _regret(30), 0.5, "{}"),
    RecordingCase("mesh:routing_without_index:ratio_5m", _without_index(6), 0.1, "{}"),
    RecordingCase("mesh:index_divergences:ratio_5m", _divergences(6), 0.1, "{}"),
    RecordingCase(
        "mesh:requests_refused:rate5m", _refused(deadline=30), 0.5, '{reason="deadline"}'
    ),
    RecordingCase(
        "vllm_gpu_cache_usage_perc",
        {_USAGE: "0.5x60", f"vllm:kv_cache_usage_perc{{{_MODEL}}}": "0.1x60"},
        0.5,
        f"{{{_DECODE_MODEL}}}",
    ),
    RecordingCase(
        "vllm_num_requests_waiting",
        # What waits in no router is on a worker alone.
        {
            f"vllm:num_requests_waiting{{{_DECODE_MODEL}}}": "4x60",
            f"vllm:num_requests_waiting{{{_MODEL}}}": "4x60",
        },
        4,
        f"{{{_DECODE_MODEL}}}",
    ),
    RecordingCase(
        "vllm_e2e_request_latency_seconds_bucket",
        {f'{_E2E}_bucket{{{_MODEL},le="30.0"}}': "7x60"},
        7,
        f'{{{_MODEL},le="30.0"}}',
    ),
    RecordingCase(
        "gpu_utilization",
        {f"pagemesh:gpu_utilization{{{_GPU}}}": "0.75x60"},
        75,
        # A product has no name of its own, and keeps the labels.
        f"{{{_GPU}}}",
    ),
]
