"""Certificates between the processes, and calls that they forbid."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, Label, Process, Unit

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
