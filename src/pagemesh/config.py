"""All settings, one frozen dataclass per area; command-line help is made from the texts below each field.

Services get only the areas that they use, composed in the `…Config` classes at the end. Values are
checked on construction; a bad one raises `ConfigError` naming the setting and the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.addresses import parse_addresses
from pagemesh.errors import ConfigError

CPU_KV_CACHE_MEMORY: Final = 0.25
"""GiB of KV cache on a CPU unless told otherwise: workers share the machine with everything else on it."""

_SCORER_WEIGHTS: Final = {"predicted_ttft": 1.0, "decode_load": 2.0, "prefix_held": 0.0}

KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3"]

RoutingPolicy = Literal["kv_aware", "least_loaded", "round_robin"]


def require(condition: bool, flag: str, value: object, expected: str) -> None:
    """Raise ConfigError naming a flag and its value unless the condition holds."""
    if not condition:
        raise ConfigError(f"{flag} is {value!r}, but must be {expected}")


def require_share(utilization: float) -> None:
    """Raise ConfigError unless --gpu-memory-utilization is a share."""
    require(0 < utilization <= 1, "--gpu-memory-utilization", utilization, "in (0, 1]")


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

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, "--port", self.port, "between 0 and 65535")
        if self.metrics_port is not None:
            require(
                0 <= self.metrics_port <= 65535,
                "--metrics-port",
                self.metrics_port,
                "between 0 and 65535",
            )
        require(self.grace_period >= 0, "--grace-period", self.grace_period, "0 or more seconds")


@dataclass(frozen=True, slots=True)
class HubConfig:
    """What is fetched from the Hugging Face hub; HF_TOKEN in the environment opens gated models."""

    revision: str | None = None
    """Branch, tag or commit of a hub id, its main branch when unset; a commit pins the files."""

    download_dir: str | None = None
    """Folder for downloads; the hub's own cache (HF_HOME) when unset."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is run."""

    model: str = ""
    """Folder with config.json, safetensors and tokenizer, or a Hugging Face hub id."""

    served_model_name: str | None = None
    """Name under which clients ask for it; the last part of --model when unset."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto takes the one in config.json."""

    max_model_len: int | None = None
    """Longest prompt plus output in tokens; the model's own context when unset, and of an encoder the
    length of texts that it was made for."""

    threads: int = 0
    """Threads for tensor operations; 0 takes every core."""

    model_impl: Literal["auto", "pagemesh", "transformers"] = "auto"
    """Whose code computes the model: pagemesh's own decoder, or transformers' over pagemesh's KV cache;
    auto takes pagemesh's where it knows the architecture."""

    hub: HubConfig = field(default_factory=HubConfig)

    def __post_init__(self) -> None:
        require(self.model != "", "--model", self.model, "a folder or a hub id")
        if self.max_model_len is not None:
            require(self.max_model_len >= 2, "--max-model-len", self.max_model_len, "at least 2")
        require(self.threads >= 0, "--threads", self.threads, "0 or more")

    @property
    def served_name(self) -> str:
        """Name under which clients ask for the model."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens per KV block."""

    kv_cache_memory: float | None = None
    """GiB of memory for KV blocks; unset, 0.25 on a CPU, and on a GPU what --gpu-memory-utilization
    leaves. An encoder takes no more of it than one step needs."""

    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV blocks; auto takes the model's own. fp8 (the same as fp8_e4m3) halves them, with
    the checkpoint's scales where it has some; on GPUs only."""

    swap_space: float = 0.0
    """GiB of host memory, pinned where there is a GPU, for the KV of preempted requests, which is
    computed again when there is no room. On a CPU the same memory serves better as --kv-cache-memory.
    Encoders have no use for it."""

    enable_prefix_caching: bool = True
    """Keep the KV of finished requests and reuse it for equal prefixes. Encoders never do."""

    def __post_init__(self) -> None:
        require(self.block_size > 0, "--block-size", self.block_size, "positive")
        if self.kv_cache_memory is not None:
            require(self.kv_cache_memory > 0, "--kv-cache-memory", self.kv_cache_memory, "positive")
        require(self.swap_space >= 0, "--swap-space", self.swap_space, "0 or more GiB")

    @property
    def cpu_kv_memory(self) -> float:
        """GiB of memory for KV blocks on a CPU."""
        return CPU_KV_CACHE_MEMORY if self.kv_cache_memory is None else self.kv_cache_memory


@dataclass(frozen=True, slots=True)
class HardwareConfig:
    """What computes the model."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the model runs on; auto takes a GPU where torch sees one, else the CPU."""

    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory that one engine may take: its weights, the largest step and, unless
    --kv-cache-memory says how much, KV blocks in what is left. `pagemesh up` divides it among the workers
    on the same GPU."""

    enforce_eager: bool = False
    """Start every kernel of a decode by itself on a GPU, rather than replaying CUDA graphs."""

    def __post_init__(self) -> None:
        require_share(self.gpu_memory_utilization)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one engine step."""

    max_num_seqs: int = 64
    """Most requests in the running batch."""

    max_num_batched_tokens: int = 512
    """Most tokens computed in one step: decodes first, then chunks of prompts. At least
    --max-num-seqs, so that all decodes fit in. An encoder computes prompts whole, and longer ones
    all the same."""

    async_scheduling: Literal["auto", "on", "off"] = "auto"
    """Prepare a step while the device computes the one before it, whose tokens are not known yet. The
    tokens are the same; one step more is computed behind a stop token. auto does so where the device
    works beside the host: not on a CPU, which would have to do both."""

    def __post_init__(self) -> None:
        require(self.max_num_seqs > 0, "--max-num-seqs", self.max_num_seqs, "positive")
        require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "--max-num-batched-tokens",
            self.max_num_batched_tokens,
            f"at least --max-num-seqs, {self.max_num_seqs}: a decode of every running request must"
            " fit into a step",
        )


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """A worker's place in the mesh."""

    kvstore: str | None = None
    """host:port of the kvstore, or host:port,host:port of its replicas, of which the worker uses one, and the
    next when that goes; unset, the worker serves whoever calls it directly."""

    worker_id: str | None = None
    """Name of the worker, unique in the mesh; made from role, host and port when unset."""

    advertise: str | None = None
    """host:port under which others reach the worker; its own listening address when unset."""

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


@dataclass(frozen=True, slots=True)
class KvStoreConfig:
    """Settings of the kvstore."""

    server: ServerConfig = field(default_factory=ServerConfig)

    heartbeat_interval: float = 1.0
    """Seconds between two heartbeats of a worker; it is dropped after three without one."""

    index: str = "memory"
    """Where it is kept which worker holds which blocks: memory, or redis://host:port/db (rediss:// with TLS) of
    a Redis 7 or Valkey, which several kvstores may share. One that does not answer is waited for, and routed
    around meanwhile."""

    index_max_blocks: int = 0
    """Different blocks that the index keeps at most, for each of which it takes some 100 to 150 bytes in memory
    and some 30 in Redis; when there are more, those go that were neither stored nor looked for the longest
    time. 0 keeps all that the workers have. The same for all kvstores that share a Redis."""

    def __post_init__(self) -> None:
        require(
            self.heartbeat_interval > 0, "--heartbeat-interval", self.heartbeat_interval, "positive"
        )
        require(
            self.index == "memory" or self.index.startswith(("redis://", "rediss://", "unix://")),
            "--index",
            self.index,
            "memory or redis://host:port/db",
        )
        require(
            self.index_max_blocks >= 0, "--index-max-blocks", self.index_max_blocks, "0 or more"
        )


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """How the router chooses workers."""

    policy: RoutingPolicy = "kv_aware"
    """How the decode worker of a prompt is chosen. kv_aware weighs how soon the prompt's KV can be there, by
    whichever way, against the worker's load; least_loaded goes by load alone, round_robin by neither."""

    remote_prefill_min_tokens: int | None = None
    """Prompts with fewer uncached tokens than this are prefilled on the decode worker itself, all others on
    a prefill worker. Unset, each prompt goes the way that is predicted to be the fastest, from what the
    workers measured; 16 until they have measured anything."""

    lookup_timeout: float = 0.02
    """Seconds to wait for the kvstore's answer before routing by load alone."""

    scorer_weights: tuple[str, ...] = ()
    """How much each aspect counts for kv_aware, as name=weight: predicted_ttft=1, decode_load=2 and
    prefix_held=0 where not given. The first is how soon the prompt's KV can be there, or the share of it
    that is held as long as that is not known. With a weight twice that of all others, a full batch loses to
    an idle worker whatever else speaks for it."""

    def __post_init__(self) -> None:
        if self.remote_prefill_min_tokens is not None:
            require(
                self.remote_prefill_min_tokens >= 0,
                "--remote-prefill-min-tokens",
                self.remote_prefill_min_tokens,
                "0 or more",
            )
        require(self.lookup_timeout > 0, "--lookup-timeout", self.lookup_timeout, "positive")
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
                weight = math.nan
            require(
                0 <= weight < math.inf,
                "--scorer-weights",
                setting,
                f"{name}= and a number from 0 on",
            )
            weights[name] = weight
        return weights


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of the router."""

    model: str = ""
    """Folder or hub id with tokenizer and chat template of the served model."""

    served_model_name: str | None = None
    """Name under which clients ask for it; the last part of --model when unset."""

    kvstore: str = ""
    """host:port of the kvstore, or host:port,host:port of its replicas, of which the router uses one, and the
    next when that goes."""

    request_timeout: float = 600.0
    """Seconds that a request may take in all."""

    max_waiting_requests: int = 1024
    """Requests in progress above this are refused with 429."""

    hub: HubConfig = field(default_factory=HubConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        require(self.model != "", "--model", self.model, "a folder or a hub id")
        parse_addresses("--kvstore", self.kvstore)
        require(self.request_timeout > 0, "--request-timeout", self.request_timeout, "positive")
        require(
            self.max_waiting_requests > 0,
            "--max-waiting-requests",
            self.max_waiting_requests,
            "positive",
        )

    @property
    def served_name(self) -> str:
        """Name under which clients ask for the model."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of the gateway: Envoy in front of the routers."""

    routers: tuple[str, ...] = ()
    """host:port of each router."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 8000
    """HTTP port."""

    admin_socket: str | None = None
    """Path of a unix socket for Envoy's admin interface; unset serves none."""

    access_log: str | None = None
    """File that gets one JSON object per request; unset writes none."""

    max_body_size: int = 32
    """MiB that a request's body may have; larger ones are refused with 413."""

    max_request_time: float = 660.0
    """Seconds after which a request is ended even when its router no longer answers."""

    concurrency: int = 1
    """Worker threads."""

    def __post_init__(self) -> None:
        require(len(self.routers) > 0, "--routers", self.routers, "one or more host:port")
        require(1 <= self.port <= 65535, "--port", self.port, "between 1 and 65535")
        require(self.max_body_size > 0, "--max-body-size", self.max_body_size, "positive")
        require(self.max_request_time > 0, "--max-request-time", self.max_request_time, "positive")
        require(self.concurrency > 0, "--concurrency", self.concurrency, "positive")
