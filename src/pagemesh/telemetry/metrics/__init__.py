"""Every metric of pagemesh: who exports it, its type, unit, labels, help, and what to look at when it is high.

A module for each area declares them, `catalog` has all of them, and `Metrics` makes them; nothing else in the
project creates one. docs/metrics.md, the Grafana dashboards and Prometheus' rules are made from the same
declarations (`tools/observability.py`).

Names are vLLM's where vLLM has one, with its labels `model_name` and `engine`, so that dashboards, alerts and
autoscalers made for vLLM work unchanged; ours are `pagemesh:*`.
"""

from pagemesh.telemetry.metrics.registry import Metrics

__all__ = ["Metrics"]
