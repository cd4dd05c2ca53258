"""The settings, one frozen dataclass per area; command-line help is made from the texts below each field.

Services get only the areas that they use, composed in the `…Config` classes at the end. Values are
checked on construction; a bad one raises `ConfigError` naming the setting and the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.addresses import parse_addresses
from pagemesh.config.connections import MeshTlsConfig, TracesConfig, check_store_url
from pagemesh.config.engine import (
    CPU_KV_CACHE_MEMORY,
    CacheConfig,
    CpuIsaName,
    HardwareConfig,
    HubConfig,
    KvCacheDtype,
    ModelConfig,
    SchedulerConfig,
)
from pagemesh.config.environment import require, require_seconds
from pagemesh.config.gateway import CorsConfig, GatewayConfig, HttpLimitsConfig, TlsConfig
from pagemesh.config.router import (
    ApiConfig,
    ChatConfig,
    GenerationConfig,
    RequestLogConfig,
    TenantsConfig,
)
from pagemesh.config.served import ServedModels, read_served_models, require_for_one

__all__ = [
    "CPU_KV_CACHE_MEMORY",
    "ApiConfig",
    "CacheConfig",
    "ChatConfig",
    "CorsConfig",
    "CpuIsaName",
    "GatewayConfig",
    "GenerationConfig",
    "HardwareConfig",
    "HttpLimitsConfig",
    "HubConfig",
    "KvCacheDtype",
    "KvStoreConfig",
    "MemberConfig",
    "MeshTlsConfig",
    "MetricsConfig",
    "MigrationConfig",
    "ModelConfig",
    "RequestLogConfig",
    "RouterConfig",
    "RoutingConfig",
    "RoutingPolicy",
    "SchedulerConfig",
    "ServerConfig",
    "TenantsConfig",
    "TlsConfig",
    "TracesConfig",
    "WorkerConfig",
    "require",
]

_WEEK: Final = 7 * 24 * 3600
_SCORER_WEIGHTS: Final = {
    "predicted_ttft": 1.0,
    "decode_load": 2.0,
    "prefix_held": 0.0,
    "session": 0.25,
}

RoutingPolicy = Literal["kv_aware", "prefix_hash", "least_loaded", "round_robin"]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where a process listens and how it stops."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 0
    """gRPC port; 0 takes a free one."""

    metrics_port: int | None = None
    """Port of the Prometheus metrics; 0 takes a free one, unset serves none."""

    grace_period: float = 3.0
    """Seconds that running requests get to finish after SIGTERM."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""

    log_format: Literal["json", "console"] = "json"
    """One JSON object per line, or lines for people."""

    mesh: MeshTlsConfig = field(default_factory=MeshTlsConfig)

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, "--port", self.port, "between 0 and 65535")
        if self.metrics_port is not None:
            require(
                0 <= self.metrics_port <= 65535,
                "--metrics-port",
                self.metrics_port,
                "between 0 and 65535",
            )
        require(
            0 <= self.grace_period <= _WEEK,
            "--grace-period",
            self.grace_period,
            f"between 0 and {_WEEK} seconds",
        )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """What routers and workers show of themselves."""

    older_metric_names: bool = True
    """Show some metrics by the names that older versions of vLLM have for them as well, for dashboards and scripts
    that were made then: vllm:gpu_cache_usage_perc, vllm:time_per_output_token_seconds and others."""


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """A worker's place in the mesh."""

    kvstore: str | None = None
    """host:port of the kvstore, or host:port,host:port of its replicas, of which the worker uses one, and the
    next when that goes; unset, the worker serves whoever calls it directly."""

    worker_id: str | None = None
    """Name of the worker, unique in the mesh; made from role, host and port when unset."""

    advertise: str | None = None
    """host:port under which others reach the worker; its own listening address when unset. auto takes the address
    that this machine's, or container's, own name stands for, and the port that it listens on."""

    share_kv_memory: bool = True
    """Let workers of the same user on this host read the KV cache, in memory or on a GPU; they then send each
    other where KV lies, and through the network only what cannot be read so."""

    def __post_init__(self) -> None:
        if self.kvstore is not None:
            parse_addresses("--kvstore", self.kvstore)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of a prefill or decode worker."""

    model: ModelConfig
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    member: MemberConfig = field(default_factory=MemberConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)


@dataclass(frozen=True, slots=True)
class KvStoreConfig:
    """Settings of the kvstore."""

    server: ServerConfig = field(default_factory=ServerConfig)

    heartbeat_interval: float = 1.0
    """Seconds between two heartbeats of a worker; it is dropped after three without one."""

    index: str = "memory"
    """Where it is kept which worker holds which blocks: memory, or redis://host:port/db (rediss:// with TLS,
    unix:///path?db=db on this machine) of a Redis 7 or Valkey, which several kvstores may share. One that does
    not answer is waited for, and routed around meanwhile."""

    index_max_blocks: int = 0
    """Different blocks that the index keeps at most, for each of which it takes some 100 to 150 bytes in memory
    and some 30 in Redis; when there are more, those go that were neither stored nor looked for the longest
    time. 0 keeps all that the workers have. The same for all kvstores that share a Redis."""

    traces: TracesConfig = field(default_factory=TracesConfig)

    def __post_init__(self) -> None:
        require_seconds("--heartbeat-interval", self.heartbeat_interval, most=3600)
        if self.index != "memory":
            check_store_url("--index", self.index)
        require(
            self.index_max_blocks >= 0, "--index-max-blocks", self.index_max_blocks, "0 or more"
        )


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """How the router chooses workers."""

    policy: RoutingPolicy = "kv_aware"
    """How the decode worker of a prompt is chosen. kv_aware weighs how soon the prompt's KV can be there, by
    whichever way, against the worker's load; prefix_hash sends equal beginnings of prompts to one worker
    unless it is too busy, and asks no kvstore; least_loaded goes by load alone, round_robin by neither."""

    remote_prefill_min_tokens: int | None = None
    """Prompts with fewer uncached tokens than this are prefilled on the decode worker itself, all others on
    a prefill worker. Unset, each prompt goes the way that is predicted to be the fastest, from what the
    workers measured; 16 until they have measured anything."""

    lookup_timeout: float = 0.02
    """Seconds to wait for the kvstore's answer before routing by load alone."""

    scorer_weights: tuple[str, ...] = ()
    """How much each aspect counts for kv_aware, as name=weight: predicted_ttft=1, decode_load=2, prefix_held=0
    and session=0.25 where not given. The first is how soon the prompt's KV can be there, or the share of it
    that is held as long as that is not known; the last, whether a worker is that of the request's session and
    its batch is not full. With a weight twice that of the first and the third, a full batch loses to an idle
    worker whatever else speaks for it."""

    explain_routes: bool = False
    """Tell clients that send the header x-pagemesh-explain where their request went and why, in the header
    x-pagemesh-route. It names workers, and tells how much of a prompt they hold, whoever sent that before."""

    def __post_init__(self) -> None:
        if self.remote_prefill_min_tokens is not None:
            require(
                self.remote_prefill_min_tokens >= 0,
                "--remote-prefill-min-tokens",
                self.remote_prefill_min_tokens,
                "0 or more",
            )
        require_seconds("--lookup-timeout", self.lookup_timeout, most=60)
        require(any(self.weights.values()), "--scorer-weights", self.scorer_weights, "not all 0")

    @property
    def weights(self) -> dict[str, float]:
        """Of all scorers, by name. Raises ConfigError for an unknown scorer, or no number from 0 on."""
        weights = dict(_SCORER_WEIGHTS)
        for setting in self.scorer_weights:
            name, _, text = setting.partition("=")
            known = ", ".join(_SCORER_WEIGHTS)
            require(name in weights, "--scorer-weights", setting, f"name=weight of one of {known}")
            try:
                weight = float(text)
            except ValueError:
                weight = float("nan")
            require(
                0 <= weight < float("inf"),
                "--scorer-weights",
                setting,
                f"{name}= and a number from 0 on",
            )
            weights[name] = weight
        return weights


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """What becomes of requests whose decode worker goes."""

    migration_limit: int = 3
    """Workers that may die under one request, which then goes on with another one where it was; with the next it
    ends with an error, and so with the first at 0. Workers that stop in order do not count."""

    poison_limit: int = 2
    """Workers that may die one after the other under one request without a token from any of them: with that many
    it is ended, and equal requests are refused for five minutes; 0 for never."""

    migration_timeout: float = 30.0
    """Seconds for which such a request waits for a worker when there is none."""

    def __post_init__(self) -> None:
        require(self.migration_limit >= 0, "--migration-limit", self.migration_limit, "0 or more")
        require(
            self.poison_limit == 0 or self.poison_limit >= 2,
            "--poison-limit",
            self.poison_limit,
            "0 or at least 2",
        )
        require(
            0 <= self.migration_timeout <= _WEEK,
            "--migration-timeout",
            self.migration_timeout,
            f"between 0 and {_WEEK} seconds",
        )


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of the router."""

    model: tuple[str, ...] = ()
    """Folders, GGUF files or hub ids with tokenizer and chat template of the served models, as the workers have them.
    Clients ask for a model by its whole hub id, or by the last part of a folder's path, or, for one that is given as
    name=folder, by the name. The first answers requests that name none."""

    served_model_name: tuple[str, ...] = ()
    """Names under which clients ask for a single --model, the first of which its workers and all answers tell."""

    model_alias: tuple[str, ...] = ()
    """Further names: alias=model, or alias=model:weight,model:weight for one whose requests are split, all of a
    session to the same model."""

    kvstore: str = ""
    """host:port of the kvstore, or host:port,host:port of its replicas, of which the router uses one, and the
    next when that goes."""

    request_timeout: float = 600.0
    """Seconds that a request may take in all."""

    max_waiting_requests: int = 1024
    """Requests that may wait in the router because all workers are full, those included that are just made ready;
    more are refused with 429. A tenant alone may have four fifths of them."""

    stream_interval: int = 1
    """Tokens that a stream is told at a time, as far as its request does not want more; its first come at once. More
    than 1 spares the router, and clients see text in steps."""

    hub: HubConfig = field(default_factory=HubConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    migration: MigrationConfig = field(default_factory=MigrationConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    tenants: TenantsConfig = field(default_factory=TenantsConfig)
    request_log: RequestLogConfig = field(default_factory=RequestLogConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        require_for_one(self.served, "--revision", self.hub.revision)
        require_for_one(self.served, "--chat-template", self.chat.chat_template)
        require_for_one(self.served, "--generation-config", self.generation.folder)
        parse_addresses("--kvstore", self.kvstore)
        require_seconds("--request-timeout", self.request_timeout, most=_WEEK)
        require(
            self.max_waiting_requests > 0,
            "--max-waiting-requests",
            self.max_waiting_requests,
            "positive",
        )
        require(self.stream_interval >= 1, "--stream-interval", self.stream_interval, "at least 1")

    @property
    def served(self) -> ServedModels:
        """The models with all their names. Raises ConfigError for what cannot be."""
        return read_served_models(self.model, self.served_model_name, self.model_alias)
