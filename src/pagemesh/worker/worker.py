"""What the servicers of one worker share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from opentelemetry.trace import Tracer

from pagemesh.config import WorkerConfig
from pagemesh.core.engine import Engine, EngineInfo
from pagemesh.kv_transfer.endpoint import BlockThreads, KvEndpoint
from pagemesh.kv_transfer.links import KvFailures, LinkMeter, LinkMetrics
from pagemesh.kv_transfer.transport_choice import KvTransports
from pagemesh.messages import layout_to_proto
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from pagemesh.worker.advertised import advertised
from pagemesh.worker.dispatcher import StepDispatcher
from pagemesh.worker.engine_metrics import EngineMetrics


@dataclass(frozen=True, slots=True)
class Worker(KvEndpoint):
    """One running engine and who it is in the mesh: moves KV, and takes requests."""

    dispatcher: StepDispatcher


def name_worker(config: WorkerConfig, role: str, address: str) -> types_pb2.WorkerInfo:
    """What is known of a worker that listens on `address` before its engine has loaded; `role` is "prefill" or
    "decode"."""
    reached_at = advertised(config.member, address)
    host, _, port = reached_at.rpartition(":")
    return types_pb2.WorkerInfo(
        worker_id=config.member.worker_id or f"{role}-{host}-{port}",
        role=types_pb2.WorkerRole.Value(f"WORKER_ROLE_{role.upper()}"),
        address=reached_at,
        model_name=config.model.served_name,
    )


def describe_worker(
    config: WorkerConfig, role: str, address: str, engine: EngineInfo
) -> types_pb2.WorkerInfo:
    """The announcement of a new incarnation of that worker."""
    info = types_pb2.WorkerInfo(
        epoch=time.time_ns(),
        model_fingerprint=engine.model_fingerprint,
        kv_layout=layout_to_proto(engine.layout),
        arithmetic=engine.arithmetic,
        identity_trouble=engine.identity_trouble,
        block_count=engine.num_blocks,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
    )
    info.MergeFrom(name_worker(config, role, address))
    return info


def assemble_worker(
    config: WorkerConfig,
    role: str,
    address: str,
    engine: Engine,
    metrics: Metrics,
    identity: Identity | None,
    tracer: Tracer,
) -> Worker:
    """A new incarnation of that worker, over an engine that has loaded; starts nothing."""
    info = describe_worker(config, role, address, engine.info)
    share = config.member.share_kv_memory
    return Worker(
        info=info,
        engine=engine,
        dispatcher=StepDispatcher(engine, EngineMetrics(metrics, info.model_name, engine)),
        block_threads=BlockThreads(),
        transports=KvTransports(engine.kv, engine.info.layout, share=share),
        links=LinkMeter(LinkMetrics(metrics).on_measured),
        failures=KvFailures(),
        metrics=metrics,
        identity=identity,
        tracer=tracer,
    )
