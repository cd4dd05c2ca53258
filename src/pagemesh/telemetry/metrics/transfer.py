"""KV transfer between workers: what was sent, received, refused, and what it cost."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.labels import RPC, WORKERS
from pagemesh.telemetry.metrics.specs import (
    CounterSpec,
    GaugeSpec,
    HistogramSpec,
    Label,
    Process,
    Unit,
)

_DECODE: Final = (Process.DECODE,)
_SENDER: Final = (
    Label("sender", source="workers of the mesh from which KV came lately, at most 256"),
)

KV_REASONS: Final = (
    "KV_AFTER_ERROR",
    "KV_DUPLICATE",
    "KV_EMPTY",
    "KV_INTEGRITY",
    "KV_MALFORMED",
    "KV_NO_HEADER",
    "KV_OUT_OF_RANGE",
    "KV_WRONG_ARITHMETIC",
    "KV_WRONG_CHECKSUM",
    "KV_WRONG_COUNT",
    "KV_WRONG_EPOCH",
    "KV_WRONG_HASH",
    "KV_WRONG_LAYOUT",
    "KV_WRONG_MODEL",
    "KV_WRONG_SENDER",
    "KV_WRONG_SIZE",
    "KV_WRONG_STREAM",
)
"""All that can be wrong with a KV message: reasons of `KvIntegrityError`."""

LINK_BYTES_PER_SECOND: Final = GaugeSpec(
    name="pagemesh:link_bytes_per_second",
    help="KV bytes per second from a sender that has them ready, as measured; 0 while unknown.",
    unit=Unit.BYTES_PER_SECOND,
    labels=_SENDER,
    processes=WORKERS,
    look_at="nothing: high is good. When it is low, the network between the two, or their cores",
)
LINK_LATENCY_SECONDS: Final = GaugeSpec(
    name="pagemesh:link_latency_seconds",
    help="From a call for KV to a sender's first message, as measured.",
    unit=Unit.SECONDS,
    labels=_SENDER,
    processes=WORKERS,
    look_at="the sender's load: its engine has to come between two steps",
)
KV_BLOCKS_SENT: Final = CounterSpec(
    name="pagemesh:kv_blocks_sent",
    help="KV blocks sent to other workers, a prompt's last, partly filled one as well; each with its last layer.",
    unit=Unit.BLOCKS,
    labels=(RPC,),
    processes=WORKERS,
    look_at="as for pagemesh:kv_bytes_sent",
)
KV_BYTES_SENT: Final = CounterSpec(
    name="pagemesh:kv_bytes_sent",
    help="KV bytes sent to other workers.",
    unit=Unit.BYTES,
    labels=(RPC,),
    processes=WORKERS,
    look_at="pagemesh:kv_transfer_exposed_seconds: as long as that is near 0, nobody waits for the bytes",
)
KV_TOKENS_RECEIVED: Final = CounterSpec(
    name="pagemesh:kv_tokens_received",
    help="Prompt tokens whose KV was received and verified.",
    unit=Unit.TOKENS,
    processes=WORKERS,
    look_at="as for pagemesh:kv_bytes_sent",
)
KV_BYTES_RECEIVED: Final = CounterSpec(
    name="pagemesh:kv_bytes_received",
    help="KV bytes received and verified.",
    unit=Unit.BYTES,
    processes=WORKERS,
    look_at="as for pagemesh:kv_bytes_sent",
)
KV_REJECTED: Final = CounterSpec(
    name="pagemesh:kv_rejected",
    help="KV messages that were refused, by what was wrong.",
    unit=Unit.COUNT,
    labels=(Label("reason", KV_REASONS),),
    processes=WORKERS,
    look_at="the worker's log, which names the sender. KV_WRONG_EPOCH is a sender that was restarted; "
    "KV_WRONG_CHECKSUM is damage on the way and wants a look at the machine or network",
)
REMOTE_PREFILLS: Final = CounterSpec(
    name="pagemesh:remote_prefills",
    help="Prompts with a prefill plan, by outcome: complete (all KV came from prefill workers), pulled (some came "
    "out of another worker's cache, the rest was computed here), local (too little was missing), overruled (sooner "
    "computed here than planned), fallback (computed here after failures), finished (the request was over with its "
    "first token, before all KV was there), or cancelled.",
    unit=Unit.REQUESTS,
    labels=(
        Label(
            "outcome",
            ("complete", "pulled", "local", "overruled", "fallback", "finished", "cancelled"),
        ),
    ),
    processes=_DECODE,
    look_at="fallback: pagemesh:kv_import_failures says why. overruled: the router's view is old",
)
KV_IMPORT_FAILURES: Final = CounterSpec(
    name="pagemesh:kv_import_failures",
    help="Streams of KV that did not deliver what they should, by RPC and reason.",
    unit=Unit.COUNT,
    labels=(RPC, Label("reason", source="reasons of errors, at most 64, then OTHER")),
    processes=WORKERS,
    look_at="the worker's log, which names the other one; `pagemesh doctor` tries the ways between workers",
)
KV_PULLS: Final = CounterSpec(
    name="pagemesh:kv_pulls",
    help="Pulls of KV out of another worker's cache, by who wanted it: a decode worker for a request of its own (pull) "
    "or a prefill worker for the rest of a prompt that it computes (remote_pull); and by outcome: complete, partial "
    "(there was less than expected), failed or cancelled.",
    unit=Unit.COUNT,
    labels=(
        Label("path", ("pull", "remote_pull")),
        Label("outcome", ("complete", "partial", "failed", "cancelled")),
    ),
    processes=WORKERS,
    look_at="partial: the index knows blocks that are gone (pagemesh:index_divergences). failed: "
    "pagemesh:kv_import_failures",
)
KV_TRANSFER_EXPOSED_SECONDS: Final = HistogramSpec(
    name="pagemesh:kv_transfer_exposed_seconds",
    help="Of a complete remote prefill, from the first token's arrival to the last KV; 0 if that came before.",
    unit=Unit.SECONDS,
    buckets=buckets.EXPOSED,
    processes=_DECODE,
    look_at="pagemesh:link_bytes_per_second, and whether workers on one host read each other's memory "
    "(--share-kv-memory)",
)
REMOTE_PREFILL_SECONDS: Final = HistogramSpec(
    name="pagemesh:remote_prefill_seconds",
    help="From the call to the last KV of a complete remote prefill.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    processes=_DECODE,
    look_at="pagemesh:pending_prefill_tokens of the prefill workers",
)
