"""Puts together what the servicers of one worker share."""

from __future__ import annotations

from pagemesh.config import MemberConfig
from pagemesh.core.engine import Engine
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from pagemesh.worker.dispatcher import StepDispatcher
from pagemesh.worker.engine_metrics import EngineMetrics
from pagemesh.worker.kv_transports import KvTransports
from pagemesh.worker.lease import BlockWorkers
from pagemesh.worker.links import KvFailures, LinkMeter, LinkMetrics
from pagemesh.worker.tracing import Tracing
from pagemesh.worker.worker import Worker


def assemble_worker(
    info: types_pb2.WorkerInfo,
    engine: Engine,
    member: MemberConfig,
    metrics: Metrics,
    identity: Identity | None,
    tracing: Tracing,
) -> Worker:
    """A worker over an engine that has loaded; starts nothing."""
    return Worker(
        info=info,
        engine=engine,
        dispatcher=StepDispatcher(engine, EngineMetrics(metrics, info.model_name, engine)),
        block_workers=BlockWorkers(),
        transports=KvTransports(engine.kv, engine.info.layout, share=member.share_kv_memory),
        links=LinkMeter(LinkMetrics(metrics).on_measured),
        failures=KvFailures(),
        metrics=metrics,
        identity=identity,
        tracing=tracing,
    )
