"""Which processes a mesh has, and with which settings each is started. Pure: starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pagemesh.cli.arguments import to_arguments
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.sharing import GpuShare, Shared, share_gpus, worker_threads
from pagemesh.config import (
    GatewayConfig,
    KvStoreConfig,
    MemberConfig,
    MeshTlsConfig,
    MetricsConfig,
    ModelConfig,
    RouterConfig,
    ServerConfig,
    WorkerConfig,
)
from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.config.served import NamedModel
from pagemesh.engine_process.environment import SLEEPING_THREADS
from pagemesh.identity.roles import MeshRole

LOOPBACK: Final = "127.0.0.1"
"""All parts but the gateway are for this machine alone."""


LAST_WORDS_S: Final = 0.5
"""Seconds that the gateway has beyond the routers' grace period, at the end of which they say what they end."""


class Stage(IntEnum):
    """What a part is to the others, from those who call to those who are called."""

    GATEWAY = 0
    ROUTER = 1
    WORKER = 2
    KVSTORE = 3


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One process of the mesh."""

    name: str
    """For people, logs and worker ids, for example "decode-0"."""

    stage: Stage

    command: tuple[str, ...]
    """Program and arguments."""

    role: MeshRole
    """What it is to the others."""

    tls: MeshTlsConfig
    """Where its certificate is to be."""

    address: str
    """host:port of its gRPC server; of the HTTP server for the gateway."""

    environment: dict[str, str] = field(repr=False)
    """Variables set on top of the supervisor's own."""

    work: str | None = None
    """What the mesh cannot do without it and those with the same work; None where it can."""

    descriptors: tuple[int, ...] = ()
    """Of the supervisor's, those that it inherits."""


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """All processes of the mesh."""

    parts: tuple[PartPlan, ...]
    models: tuple[str, ...]
    """Names under which clients ask for the models."""

    url: str
    """Where clients reach the gateway."""

    local_socket: Path
    """Unix socket on which the gateway serves this process."""

    grace_period: float
    """Seconds that running requests get to finish."""

    start_timeout: float
    """Seconds that a start may take."""

    supervisor_tls: MeshTlsConfig
    """Where the certificate is to be with which parts are asked how they are."""


def num_ports(config: UpConfig) -> int:
    """Ports of the loopback address that the parts of a mesh need: two for each but the gateway, one of them for
    its metrics."""
    return 2 * (config.kvstore + config.router + len(_places(config)))


def make_plan(
    config: UpConfig,
    ports: Sequence[int],
    run_folder: Path,
    access_log: Path | None,
    gpus: Sequence[str] = (),
    shared: Shared | None = None,
) -> MeshPlan:
    """Plan a mesh on `num_ports` loopback ports; `run_folder` is for sockets. Raises ConfigError.

    The workers share the `gpus`, which CUDA_VISIBLE_DEVICES names so, and lend each other cores and hold the same
    weights once where `shared` says by what.
    """
    tls = _TlsFiles(run_folder / "tls", is_on=config.tls)
    server = _Servers(iter(ports), tls, config.grace_period, config.log_level)
    kvstores = [
        KvStoreConfig(server=server(name), index=config.index, traces=config.traces)
        for name in _names("kvstore", config.kvstore)
    ]
    kvstore = ",".join(f"{LOOPBACK}:{replica.server.port}" for replica in kvstores)
    routers = [_router(config, kvstore, server(name)) for name in _names("router", config.router)]
    local_socket = run_folder / "http.sock"
    gateway = _gateway(config, routers, local_socket, access_log)
    gateway = replace(gateway, mesh=tls("gateway"))
    workers = _workers(config, gpus, shared, kvstore, server)
    parts = (
        *(
            _part(name, Stage.KVSTORE, "kvstore", replica, replica.server)
            for name, replica in zip(_names("kvstore", config.kvstore), kvstores, strict=True)
        ),
        *(
            _part(name, Stage.ROUTER, "router", router, router.server, _keys(config))
            for name, router in zip(_names("router", config.router), routers, strict=True)
        ),
        *workers,
        # What it writes about certificates goes with the mesh, and so does its admin socket.
        _part("gateway", Stage.GATEWAY, "gateway", gateway, gateway, {"TMPDIR": str(run_folder)}),
    )
    return MeshPlan(
        parts,
        config.served.names,
        _url(config),
        local_socket,
        config.grace_period,
        config.start_timeout,
        tls("supervisor"),
    )


@dataclass(frozen=True, slots=True)
class _TlsFiles:
    """Where the files of each part lie; what they have in common, each has too, as in other deployments."""

    folder: Path
    is_on: bool

    def __call__(self, name: str) -> MeshTlsConfig:
        if not self.is_on:
            return MeshTlsConfig()
        return MeshTlsConfig.in_folder(self.folder, name)


@dataclass(frozen=True, slots=True)
class _Servers:
    """Two ports for each part that has a gRPC server."""

    ports: Iterator[int]
    tls: _TlsFiles
    grace_period: float
    log_level: Literal["debug", "info", "warning", "error"]

    def __call__(self, name: str) -> ServerConfig:
        return ServerConfig(
            host=LOOPBACK,
            port=next(self.ports),
            metrics_port=next(self.ports),
            grace_period=self.grace_period,
            log_level=self.log_level,
            mesh=self.tls(name),
        )


class _Place(NamedTuple):
    """A worker to be."""

    role: str
    name: str
    model: NamedModel


def _places(config: UpConfig) -> list[_Place]:
    """All workers: of each role those of one model after those of another."""
    counts = {"prefill": config.prefill, "decode": config.decode}
    return [
        _Place(role, f"{role}-{number}", model)
        for role, count in counts.items()
        for number, model in enumerate(m for m in config.served.models for _ in range(count))
    ]


def _names(part: str, count: int) -> list[str]:
    """Of equal parts; a single one needs no number."""
    return [part] if count == 1 else [f"{part}-{index}" for index in range(count)]


def _gateway(
    config: UpConfig,
    routers: Sequence[RouterConfig],
    local_socket: Path,
    access_log: Path | None,
) -> GatewayConfig:
    return GatewayConfig(
        routers=tuple(f"{LOOPBACK}:{router.server.port}" for router in routers),
        host=config.host,
        port=config.port,
        local_socket=str(local_socket),
        grace_period=config.grace_period + LAST_WORDS_S,
        access_log=None if access_log is None else str(access_log),
        api_key_required=config.tenants.asks_for_keys,
        tls=config.client_tls,
        cors=config.cors,
        limits=config.limits,
        traces=config.traces,
    )


def _router(config: UpConfig, kvstore: str, server: ServerConfig) -> RouterConfig:
    return RouterConfig(
        model=config.model,
        served_model_name=config.served_model_name,
        model_alias=config.model_alias,
        kvstore=kvstore,
        max_waiting_requests=config.max_waiting_requests,
        stream_interval=config.stream_interval,
        hub=config.hub,
        chat=config.chat,
        generation=config.generation,
        api=config.api,
        routing=config.routing,
        migration=config.migration,
        traces=config.traces,
        request_log=config.request_log,
        server=server,
        metrics=MetricsConfig(config.older_metric_names),
        tenants=replace(
            config.tenants,
            api_key=(),
            limits_shared_by=config.tenants.limits_shared_by * config.router,
        ),
    )


def _keys(config: UpConfig) -> dict[str, str]:
    """Where only the router reads them; anybody could read its command line."""
    keys = config.tenants.api_key
    return {API_KEY_VARIABLE: ",".join(keys)} if keys else {}


def _worker(
    config: UpConfig,
    place: _Place,
    resources: tuple[int, GpuShare | None],
    kvstore: str,
    server: ServerConfig,
) -> PartPlan:
    threads, gpu = resources
    hardware, environment = config.hardware, {"OMP_NUM_THREADS": str(threads), **SLEEPING_THREADS}
    if gpu is not None:
        hardware = replace(hardware, gpu_memory_utilization=gpu.utilization)
        environment["CUDA_VISIBLE_DEVICES"] = gpu.gpu
    settings = WorkerConfig(
        model=ModelConfig(
            model=place.model.source,
            served_model_name=place.model.name,
            dtype=config.dtype,
            max_model_len=config.max_model_len,
            threads=threads,
            model_impl=config.model_impl,
            quantization=config.quantization,
            hub=config.hub,
        ),
        hardware=hardware,
        cache=config.cache,
        scheduler=config.scheduler,
        member=MemberConfig(
            kvstore=kvstore, worker_id=place.name, share_kv_memory=config.share_kv_memory
        ),
        server=server,
        metrics=MetricsConfig(config.older_metric_names),
        traces=config.traces,
    )
    part = _part(place.name, Stage.WORKER, place.role, settings, server, environment)
    # Without those that prefill, those that decode do both.
    return replace(part, work=f"decode {place.model.name}" if place.role == "decode" else None)


def _workers(
    config: UpConfig,
    gpus: Sequence[str],
    shared: Shared | None,
    kvstore: str,
    server: _Servers,
) -> list[PartPlan]:
    threads = worker_threads(config)
    shares = share_gpus(gpus, len(threads), config.hardware.gpu_memory_utilization)
    workers = [
        _worker(config, place, (count, gpu), kvstore, server(place.name))
        for place, count, gpu in zip(_places(config), threads, shares, strict=True)
    ]
    if shared is None:
        return workers
    return [_sharing(part, shared, index) for index, part in enumerate(workers)]


def _sharing(part: PartPlan, shared: Shared, index: int) -> PartPlan:
    """A worker that finds what it shares, and its place in the table of cores."""
    environment = {**part.environment, **shared.environment(index)}
    return replace(part, environment=environment, descriptors=tuple(shared))


def _part(
    name: str,
    stage: Stage,
    command: str,
    settings: object,
    server: ServerConfig | GatewayConfig,
    environment: dict[str, str] | None = None,
) -> PartPlan:
    # -P: modules that happen to lie in the current folder must not hide installed ones.
    program = (sys.executable, "-P", "-m", "pagemesh.cli", command, *to_arguments(settings))
    address = f"{server.host}:{server.port}"
    tls, variables = server.mesh, environment or {}
    return PartPlan(name, stage, program, MeshRole(command), tls, address, variables, command)


def _url(config: UpConfig) -> str:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    host = anywhere.get(config.host, config.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    scheme = "http" if config.client_tls.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{config.port}"
