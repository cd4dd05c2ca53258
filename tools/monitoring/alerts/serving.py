"""What clients feel: errors, waits, refusals, and a model without workers."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import admission, engine, gateway, requests, routing
from pagemesh.telemetry.metrics.specs import Process
from tools.monitoring.alert import Alert, Severity
from tools.monitoring.query import ratio
from tools.monitoring.recording import RULES
from tools.monitoring.thresholds import threshold

_QUEUES: Final[list[tuple[str, str, Severity, str]]] = [
    ("PagemeshQueueLong", "waitingRequests", "warning", "Many requests wait"),
    ("PagemeshQueueVeryLong", "waitingRequestsCritical", "critical", "Very many requests wait"),
]

ALERTS: Final = [
    Alert(
        "PagemeshNoDecodeWorker",
        f"max by (model_name) ({RULES.series(routing.WORKERS, role='decode')}) == 0",
        "1m",
        "critical",
        "A model has no decode worker",
        "No router reaches a decode worker for {{ $labels.model_name }}: requests for it are refused.",
        [
            "`pagemesh doctor` says who is in the mesh and who cannot be reached.",
            "Look at the decode workers' logs: a worker joins when its weights are loaded.",
            "Look whether the kvstore runs: workers and routers find each other there.",
        ],
        [routing.WORKERS],
    ),
    Alert(
        "PagemeshRequestsFail",
        "model:requests_failed:ratio_5m > 0.05",
        "5m",
        "critical",
        "Requests end with errors",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model_name }} end with an error.",
        [
            "The routers' logs have the reason of each, and the worker where it happened.",
            "If it is always one worker, stop it: its requests go on elsewhere.",
        ],
        [requests.REQUEST_SUCCESS],
    ),
    Alert(
        "PagemeshClientsGiveUp",
        "model:requests_aborted:ratio_5m > 0.3",
        "15m",
        "warning",
        "Clients give up many requests",
        "Clients give up {{ $value | humanizePercentage }} of the requests for {{ $labels.model_name }}.",
        [
            "Look at the time to the first token: mostly they wait too long.",
            "Some clients cancel by design, once they have what they want: then silence this alert for the model.",
        ],
        [requests.REQUEST_SUCCESS],
    ),
    Alert(
        "PagemeshFirstTokenSlow",
        f"model:time_to_first_token_seconds:p95_5m > {threshold('firstTokenSeconds')}",
        "10m",
        "warning",
        "First tokens come late",
        "Of {{ $labels.model_name }}, 5 % of the first tokens take more than {{ $value | humanizeDuration }}.",
        [
            "If requests wait (PagemeshRequestsWait), there are too few decode workers.",
            "If vllm:request_prefill_time_seconds is most of it, there are too few prefill workers, or prompts have "
            "become longer, or less of them is cached.",
            "If KV transfers are exposed (PagemeshTransfersExposed), the network is too slow for the prompts.",
        ],
        [requests.TIME_TO_FIRST_TOKEN],
    ),
    Alert(
        "PagemeshTokensSlow",
        f"model:inter_token_latency_seconds:p95_5m > {threshold('betweenTokensSeconds')}",
        "10m",
        "warning",
        "Tokens come slowly",
        "Of {{ $labels.model_name }}, 5 % of the tokens take more than {{ $value | humanizeDuration }}.",
        [
            "Look at the batches (vllm:num_requests_running): fewer slots per worker (--max-num-seqs), or more workers.",
            "Look at prompts that are computed on decode workers: a prefill worker takes them off.",
            "Look at preemptions (PagemeshPreemptions).",
        ],
        [requests.INTER_TOKEN_LATENCY],
    ),
    Alert(
        "PagemeshRequestsSlow",
        f"model:e2e_request_latency_seconds:p99_5m > {threshold('requestSeconds')}",
        "10m",
        "warning",
        "Answers take long",
        "Of {{ $labels.model_name }}, 1 % of the answers take more than {{ $value | humanizeDuration }}.",
        [
            "Look at the length of answers (vllm:request_generation_tokens): long ones take long. Limit max_tokens, or "
            "raise the threshold.",
            "If requests wait (PagemeshQueueLong), or tokens come late (PagemeshFirstTokenSlow, PagemeshTokensSlow), see "
            "there.",
        ],
        [requests.E2E_REQUEST_LATENCY],
    ),
    Alert(
        "PagemeshSuccessLow",
        f"1 - model:requests_failed:ratio_5m < {threshold('successRatio')}",
        "15m",
        "warning",
        "Fewer requests succeed than were promised",
        "Of the requests for {{ $labels.model_name }}, {{ $value | humanizePercentage }} end without an error.",
        [
            "The routers' logs have the reason of each error, and the worker where it happened.",
            "What clients gave up is not counted: see PagemeshClientsGiveUp.",
        ],
        [requests.REQUEST_SUCCESS],
    ),
    *(
        Alert(
            name,
            f"model:num_requests_waiting:sum > {threshold(limit)}",
            "5m",
            severity,
            summary,
            "{{ $value }} requests for {{ $labels.model_name }} wait.",
            [
                "Add decode workers, or let the autoscaler: its maximum may be reached.",
                "Bound what waits (--max-waiting-requests): what is refused at once can go elsewhere.",
            ],
            [engine.NUM_REQUESTS_WAITING, admission.REQUESTS_QUEUED],
        )
        for name, limit, severity, summary in _QUEUES
    ),
    Alert(
        "PagemeshRequestsWait",
        "model:num_requests_waiting:sum > 10 and model:num_requests_waiting:sum > model:num_requests_running:sum",
        "10m",
        "warning",
        "More requests wait than run",
        "{{ $value }} requests for {{ $labels.model_name }} wait, more than run.",
        [
            "Add decode workers, or let the autoscaler: its maximum may be reached.",
            "Look who sends so much: the tenant in the router's log. Limits per tenant are in the key file.",
        ],
        [engine.NUM_REQUESTS_WAITING, admission.REQUESTS_QUEUED],
    ),
    Alert(
        "PagemeshRequestsRefused",
        f"{RULES.rate(admission.REQUESTS_REFUSED, by=['reason'], reason='queue_full|deadline|no_worker')} > 0.1",
        "5m",
        "warning",
        "Requests are refused for want of workers",
        "{{ $value | humanize }} requests per second are refused: {{ $labels.reason }}.",
        [
            "no_worker: see PagemeshNoDecodeWorker.",
            "queue_full, deadline: add decode workers. Clients get 429 or 503 and when to come back; nobody hangs.",
        ],
        [admission.REQUESTS_REFUSED],
    ),
    Alert(
        "PagemeshGatewayErrors",
        ratio(
            RULES.rate(gateway.RESPONSES, envoy_response_code_class="5"),
            RULES.rate(gateway.RESPONSES),
        )
        + " > 0.05",
        "5m",
        "critical",
        "The gateway answers with server errors",
        "{{ $value | humanizePercentage }} of the answers to clients have a status of 5xx.",
        [
            "See PagemeshRequestsFail and PagemeshGatewayWithoutRouter.",
            "The gateway's access log has `response_flags` and the router of each request.",
        ],
        [gateway.RESPONSES],
    ),
    Alert(
        "PagemeshGatewayWithoutRouter",
        f"{RULES.series(gateway.ROUTERS_HEALTHY)} == 0",
        "1m",
        "critical",
        "A gateway has no router",
        "{{ $labels.instance }} reaches no router that serves: every request gets 503.",
        [
            "Look at the routers' logs: a router serves when its tokenizers are loaded and it knows the mesh.",
            "Look at --routers and DNS: envoy_cluster_membership_total says how many addresses there are.",
            "With TLS, look at the certificates of both.",
        ],
        [gateway.ROUTERS_HEALTHY],
    ),
    Alert(
        "PagemeshGatewayCertificateExpires",
        f"{RULES.series(gateway.CERTIFICATE_DAYS)} < 3",
        "1h",
        "warning",
        "A certificate of the gateway expires",
        "A certificate of {{ $labels.instance }} expires in {{ $value }} days.",
        [
            "Look why nobody renews it, and replace the file by a rename; it is used at once.",
            "With certificates of a day or less between the processes, silence this alert: "
            "PagemeshCertificateExpires looks after those of the other processes.",
        ],
        [gateway.CERTIFICATE_DAYS],
    ),
    Alert(
        "PagemeshWorkersLost",
        f"sum (increase({RULES.series(routing.REQUESTS_RESUBMITTED, reason='lost')}[10m])) > 0",
        "0m",
        "warning",
        "Requests lost their worker",
        "{{ $value | humanize }} requests went on with another worker within 10 minutes, because theirs was lost.",
        [
            "Find the worker: PagemeshTargetDown, or the router's log (`request moved`, `from_worker`).",
            "Its log or its container's exit status says why it died. Clients saw a pause, no error.",
        ],
        [routing.REQUESTS_RESUBMITTED],
    ),
    Alert(
        "PagemeshKvCacheFull",
        f"{RULES.series(engine.KV_CACHE_USAGE, Process.DECODE)} > {threshold('kvCacheUsage')}",
        "10m",
        "warning",
        "A decode worker's KV cache is full",
        "Requests own {{ $value | humanizePercentage }} of the KV blocks of {{ $labels.instance }}.",
        [
            "If all decode workers are full, add some; if one is, look at PagemeshWorkersDegraded and the routing.",
            "More blocks: --gpu-memory-utilization, or --kv-cache-dtype fp8. `pagemesh plan` says what fits.",
        ],
        [engine.KV_CACHE_USAGE],
    ),
    Alert(
        "PagemeshGpuMemoryFull",
        f"{RULES.series(engine.GPU_MEMORY_USED)} / {RULES.series(engine.GPU_MEMORY)}"
        f" > {threshold('gpuMemoryUsage')}",
        "10m",
        "warning",
        "A GPU's memory is almost full",
        "{{ $value | humanizePercentage }} of the memory of {{ $labels.gpu }} is in use, on {{ $labels.instance }}.",
        [
            "If --gpu-memory-utilization is above the threshold, that is what was asked for: raise the threshold.",
            "Else look what beside the worker uses the GPU (nvidia-smi): an allocation that fails ends the engine.",
        ],
        [engine.GPU_MEMORY_USED, engine.GPU_MEMORY],
    ),
    Alert(
        "PagemeshPreemptions",
        f"60 * {RULES.rate(engine.NUM_PREEMPTIONS, Process.DECODE, by=['model_name', 'instance'])}"
        f" > {threshold('preemptionsPerMinute')}",
        "15m",
        "warning",
        "Requests take blocks from each other",
        "{{ $labels.instance }} preempts {{ $value | humanize }} requests a minute.",
        [
            "Lower --max-num-seqs, or add memory or workers: what is preempted is computed or moved again.",
            "--swap-space keeps KV of preempted requests in host memory.",
        ],
        [engine.NUM_PREEMPTIONS],
    ),
]
