"""What an alert is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pagemesh.telemetry.metrics.specs import Spec

Severity = Literal["critical", "warning"]


class Alert(NamedTuple):
    """One rule, and what to do when it fires."""

    name: str
    expr: str
    """With names of thresholds for their numbers."""
    wait: str
    """For how long it must be so."""
    severity: Severity
    summary: str
    description: str
    """With Prometheus' template fields."""
    actions: Sequence[str]
    """What to do, in this order."""
    about: Sequence[Spec] = ()
    """Metrics that it is made of."""
