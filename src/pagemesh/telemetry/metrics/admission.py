"""Who is let in, who waits, and who is refused."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics.labels import MODEL, VLLM
from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, Label, Process, Unit

_ROUTER: Final = (Process.ROUTER,)

REQUESTS_QUEUED: Final = GaugeSpec(
    name="pagemesh:requests_queued",
    help="Requests that wait in the router until workers have room.",
    unit=Unit.REQUESTS,
    labels=MODEL,
    processes=_ROUTER,
    look_at="whether workers are full (vllm:kv_cache_usage_perc): then there are too few",
)
REQUESTS_IN_PROGRESS: Final = GaugeSpec(
    name="pagemesh:requests_in_progress",
    help="Requests that the router has admitted.",
    unit=Unit.REQUESTS,
    processes=_ROUTER,
    look_at="pagemesh:requests_queued: how many of them wait",
)
REQUESTS_REFUSED: Final = CounterSpec(
    name="pagemesh:requests_refused",
    help="Requests that the router did not let in: for want of a key, by the limit of their tenant that was reached "
    "(concurrent_requests, requests_per_minute, tokens_per_minute or too_large, for any minute), because too many "
    "waited (queue_full), or would have or had waited beyond their deadline (deadline) or for a worker of which "
    "there was none (no_worker).",
    unit=Unit.REQUESTS,
    labels=(
        Label(
            "reason",
            (
                "key",
                "concurrent_requests",
                "requests_per_minute",
                "tokens_per_minute",
                "too_large",
                "queue_full",
                "deadline",
                "no_worker",
            ),
        ),
    ),
    processes=_ROUTER,
    look_at="queue_full, deadline and no_worker are the mesh's: more workers. The others are the tenant's, whom the "
    "router's log names",
)
ADMISSION_REJECTIONS: Final = CounterSpec(
    name="vllm:admission_rejections",
    help="Requests that were refused at once because of those in front of them, by vLLM's names of its limits: "
    "too many wait (max_num_queued_reqs, here --max-waiting-requests), or their tokens take longer than the "
    "request's deadline leaves (max_num_queued_tokens). In pagemesh:requests_refused as well.",
    unit=Unit.REQUESTS,
    labels=(*VLLM, Label("reason", ("max_num_queued_reqs", "max_num_queued_tokens"))),
    processes=_ROUTER,
    look_at="vllm:num_requests_waiting: whether there are workers enough",
)
KEY_FILE_READS: Final = CounterSpec(
    name="pagemesh:key_file_reads",
    help="Times that the key file was read, at the start and changed, and taken or refused; refused, the keys from "
    "before hold.",
    unit=Unit.COUNT,
    labels=(Label("outcome", ("taken", "refused")),),
    processes=_ROUTER,
    look_at="refused: the router's log says what is wrong with the file",
)
