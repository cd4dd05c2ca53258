"""What Prometheus' client library says of each Python process. An engine's own process is not in these."""

from __future__ import annotations

from functools import partial
from typing import Final

from pagemesh.telemetry.metrics.specs import ForeignSpec, Process, Unit

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
