"""Whether and how lookups are traced: decided once, when the kvstore starts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext

from pagemesh.config import TracesConfig
from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.rpc.boundary import Around
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.tracer import start_traces


def start_tracing(
    config: TracesConfig, metrics: Metrics, resources: AsyncExitStack
) -> tuple[Around, type[KvStoreServicer]]:
    """What goes around calls, and what serves them; what spans need is loaded only where they are wanted."""
    traces = start_traces(config, "kvstore", metrics)
    if config.endpoint is None:
        return nullcontext, KvStoreServicer
    from pagemesh.kvstore.traced import TracedServicer, served_spans

    resources.push_async_callback(asyncio.to_thread, traces.close)
    return served_spans(traces.tracer).around, TracedServicer
