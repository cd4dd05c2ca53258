"""What the servicers of one worker share: its engine, what moves its KV, and the address under which others call it."""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import Tracer

from pagemesh.addresses import WILDCARD_HOSTS
from pagemesh.config import MemberConfig, WorkerConfig
from pagemesh.core.engine import Engine, EngineInfo
from pagemesh.errors import ConfigError
from pagemesh.kv_transfer.endpoint import BlockThreads, KvEndpoint
from pagemesh.kv_transfer.links import KvFailures, LinkMeter, LinkMetrics
from pagemesh.kv_transfer.transport_choice import KvTransports
from pagemesh.messages import layout_to_proto
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
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
        quantization=engine.quantization,
        identity_trouble=engine.identity_trouble,
        forgets_prefixes=not engine.caches_prefixes,
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


_AUTO: Final = "auto"


def check_advertised(config: WorkerConfig) -> None:
    """Raise ConfigError when other processes would be told an address that they cannot reach."""
    member, host = config.member, config.server.host
    if member.kvstore is not None and member.advertise is None and host in WILDCARD_HOSTS:
        raise ConfigError(
            f"--advertise is unset, but must be host:port, or auto, when --host is {host!r}, "
            "which others cannot reach"
        )
    if member.advertise == _AUTO:
        _own_host()


def advertised(member: MemberConfig, listening: str) -> str:
    """host:port for others, of a worker that listens on host:port. ConfigError where auto finds none."""
    if member.advertise != _AUTO:
        return member.advertise or listening
    return f"{_own_host()}:{listening.rpartition(':')[2]}"


def _own_host() -> str:
    """What this machine's name stands for; in a container, its address in the first of its networks."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for _, _, _, _, (host, *_) in found:
        address = ipaddress.ip_address(str(host).partition("%")[0])
        if not (address.is_loopback or address.is_link_local or address.is_unspecified):
            return f"[{address}]" if address.version == 6 else str(address)
    raise ConfigError(
        f"--advertise is {_AUTO!r}, but the name of this machine, {name!r}, stands for no address that others"
        " could reach: give host:port"
    )
