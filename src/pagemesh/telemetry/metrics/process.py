"""What each process shows: its memory and files (by Prometheus' client library), certificates, spans that got lost.

An engine's own process is in none of these.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pagemesh.telemetry.metrics.specs import (
    CounterSpec,
    ForeignSpec,
    GaugeSpec,
    Label,
    Process,
    Unit,
)

_declare = partial(
    ForeignSpec,
    processes=(Process.ROUTER, Process.PREFILL, Process.DECODE, Process.KVSTORE),
    origin="prometheus-client",
)

RESIDENT_MEMORY: Final = _declare(
    name="process_resident_memory_bytes",
    kind="gauge",
    unit=Unit.BYTES,
    help="Memory that the process has.",
    look_at="what grows with it: pagemesh:index_bytes, pagemesh:requests_in_progress",
)
VIRTUAL_MEMORY: Final = _declare(
    name="process_virtual_memory_bytes",
    kind="gauge",
    unit=Unit.BYTES,
    help="Addresses that the process has.",
    look_at="nothing: it says little",
)
START_TIME: Final = _declare(
    name="process_start_time_seconds",
    kind="gauge",
    unit=Unit.TIMESTAMP,
    help="When the process was started.",
    look_at="nothing: when it changes, the process was started again",
)
CPU_SECONDS: Final = _declare(
    name="process_cpu_seconds_total",
    kind="counter",
    unit=Unit.SECONDS,
    help="Seconds of CPU time that the process took.",
    look_at="a router or kvstore near one second per second: one event loop is all that it has, so add another",
)
OPEN_FDS: Final = _declare(
    name="process_open_fds",
    kind="gauge",
    unit=Unit.COUNT,
    help="Open files and connections.",
    look_at="process_max_fds: at that, no connection is taken any more",
)
MAX_FDS: Final = _declare(
    name="process_max_fds",
    kind="gauge",
    unit=Unit.COUNT,
    help="Files and connections that the process may have open.",
    look_at="nothing: it is a limit of the system",
)
PROCESSES: Final = (RESIDENT_MEMORY, VIRTUAL_MEMORY, START_TIME, CPU_SECONDS, OPEN_FDS, MAX_FDS)


_TLS: Final = "--mesh-cert"
_SPEAKING: Final = (Process.ROUTER, Process.PREFILL, Process.DECODE, Process.KVSTORE)

CALLS_REFUSED: Final = CounterSpec(
    name="pagemesh:calls_refused",
    help="Calls of other processes that what they are, by their certificates, does not allow.",
    unit=Unit.COUNT,
    labels=(
        Label("method", source="RPCs that the process serves"),
        Label(
            "roles",
            source="roles that certificates of the mesh name, at most seven, and what they combine to",
        ),
    ),
    processes=_SPEAKING,
    only_with=_TLS,
    look_at="the log, which names the caller: a certificate with the wrong DNS names, or an intruder",
)
CERTIFICATE_EXPIRY: Final = GaugeSpec(
    name="pagemesh:certificate_expiry_timestamp_seconds",
    help="When the certificate that this process shows to others expires, in seconds since 1970.",
    unit=Unit.TIMESTAMP,
    processes=_SPEAKING,
    only_with=_TLS,
    look_at="nothing: when it comes near, whether cert-manager or whoever else renews it, and replaces the file",
)
CERTIFICATES: Final = (CALLS_REFUSED, CERTIFICATE_EXPIRY)


SPANS_DROPPED: Final = CounterSpec(
    name="pagemesh:spans_dropped",
    help="Spans that were recorded and that no collector took: it was away, or too slow for them.",
    unit=Unit.COUNT,
    processes=(Process.ROUTER, Process.PREFILL, Process.DECODE, Process.KVSTORE),
    only_with="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    look_at="whether the collector runs and takes so many; else sample fewer requests",
)
TRACES: Final = (SPANS_DROPPED,)
