"""How much memory a model needs, and for what. Plain numbers: no torch, and no weights to look at.

A device holds, in vLLM's order of thought, its share of the weights, what the runtime takes whatever it
computes, the activations of the largest step, and KV blocks in what is left. docs/memory.md explains
every term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.models.spec import DecoderSpec, MlpSpec, MoeSpec

if TYPE_CHECKING:
    from pagemesh.models.transformers_backend.read import Outline


GIB: Final = 2**30

RUNTIME_BYTES: Final[dict[Literal["cpu", "cuda"], int]] = {
    "cpu": GIB * 3 // 10,
    "cuda": GIB * 6 // 10,
}
"""Of a process that has loaded torch and computes nothing; on CUDA, of its context on the device.

Measured with torch 2.13: 0.25 to 0.3 GiB resident on the CPU. CUDA contexts and library workspaces
take 0.5 to 0.6 GiB on current devices.
"""

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number of each type."""
_FLOAT32_BYTES: Final = 4
_SAMPLING_BYTES: Final = 4 + 3 * 8
"""Per logit: a float32 copy, and three whole numbers, by which the likeliest tokens are found where log probabilities
are asked for (`kernels.logprobs`); lists of candidates on a device, and the weights of draws, take less."""

_REPLICATED: Final = (
    *("norm.weight", "norm.bias", "router.weight", "router.bias", "shared_gate.weight"),
    *("positions", "token_types"),
    # Of projections whose input is split: added once, behind the sum over the devices.
    *("o.bias", "down.bias"),
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the memory is on."""

    kind: Literal["cpu", "cuda"]

    usable_bytes: int
    """Memory that may be used on each device."""

    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step."""

    num_tokens: int
    num_seqs: int
    """Sequences for which a token is sampled."""
    max_model_len: int


@dataclass(frozen=True, slots=True)
class StepWidths:
    """Numbers of each token on one device, where the tensors of a step are widest."""

    hidden: int
    attending: int
    """Queries, keys, values and the attention's output."""
    inner: int
    """Between a layer's projections."""
    vocab: int
    """Logits of a sampled token; 0 without a head."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on each device."""

    usable_bytes: int
    weight_bytes: int
    runtime_bytes: int
    table_bytes: int
    activation_bytes: int
    layout: KvLayout
    """Of the device's share of a KV block."""

    max_model_len: int

    step: StepLimits | None = None
    """Of an encoder, the largest step: it has no use for more KV, because it keeps none."""

    @property
    def kv_bytes(self) -> int:
        """What is left for KV blocks; negative when the model itself does not fit."""
        model_bytes = self.weight_bytes + self.table_bytes
        return self.usable_bytes - model_bytes - self.runtime_bytes - self.activation_bytes

    @property
    def num_blocks(self) -> int:
        """KV blocks that fit, as far as they are of use."""
        num_blocks = max(0, self.kv_bytes) // self.layout.num_bytes
        if self.step is None:
            return num_blocks
        return min(num_blocks, num_step_blocks(self.step, self.layout.block_size))

    @property
    def cache_bytes(self) -> int:
        """Of these, what the KV cache takes."""
        if self.step is None:
            return max(0, self.kv_bytes)
        return self.num_blocks * self.layout.num_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one token over all layers; of an encoder, over one."""
        return self.layout.num_bytes // self.layout.block_size

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV fits."""
        return self.num_blocks * self.layout.block_size

    @property
    def max_concurrency(self) -> int:
        """Requests of full length whose KV fits at once; of an encoder, that a step can compute."""
        num_requests = self.num_blocks // -(-self.max_model_len // self.layout.block_size)
        if self.step is None:
            return num_requests
        return min(num_requests, self.step.num_tokens // self.max_model_len, self.step.num_seqs)


def make_plan(
    spec: DecoderSpec,
    dtype: str,
    block_size: int,
    limits: StepLimits,
    on: Hardware,
    kv_dtype: str | None = None,
    packed: Mapping[str, int] = MappingProxyType({}),
) -> MemoryPlan:
    """Plan a model from its spec; its KV is of its own type unless told otherwise, and of `packed` see `weight_bytes`.

    ConfigError when it cannot be split over so many devices.
    """
    check_parallel(spec, on.tensor_parallel_size)
    return MemoryPlan(
        usable_bytes=on.usable_bytes,
        weight_bytes=weight_bytes(spec, dtype, on.tensor_parallel_size, packed),
        runtime_bytes=RUNTIME_BYTES[on.kind],
        table_bytes=table_bytes(spec, dtype, limits.max_model_len, on, packed),
        activation_bytes=activation_bytes(spec, dtype, limits, on.tensor_parallel_size),
        layout=kv_layout(spec, kv_dtype or dtype, block_size, on.tensor_parallel_size),
        max_model_len=limits.max_model_len,
        step=None if spec.causal else limits,
    )


def check_parallel(spec: DecoderSpec, tensor_parallel_size: int) -> None:
    """Raise ConfigError unless every device gets the same number of heads."""
    num_heads = spec.attention.num_heads
    if num_heads % tensor_parallel_size:
        raise ConfigError(
            f"--tensor-parallel-size is {tensor_parallel_size}, but must divide the model's "
            f"{num_heads} attention heads"
        )


def num_parameters(spec: DecoderSpec) -> int:
    """Numbers that a checkpoint of the model holds; tied ones count once."""
    return sum(map(prod, spec.parameter_shapes().values()))


def weight_bytes(
    spec: DecoderSpec,
    dtype: str,
    tensor_parallel_size: int = 1,
    packed: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Weights of one device; `packed` are the bytes of parameters that are not kept in their type (`sizing.weights`).

    Projections, embeddings and experts are split evenly (Megatron-LM, Shoeybi et al. 2019), heads of
    keys and values as far as there are enough of them; norms and routers are on every device.
    """
    share = _Share(spec, tensor_parallel_size)
    shapes = spec.parameter_shapes()
    total = 0
    for name, shape in shapes.items():
        size = prod(shape)
        num_bytes = packed.get(name, size * ITEM_BYTES[dtype])
        total += -(-num_bytes * share.of(name, size) // size)
    return total


def table_bytes(
    spec: DecoderSpec,
    dtype: str,
    max_model_len: int,
    on: Hardware,
    packed: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """What is made of the weights: the factors of each RoPE, and on a CPU the tied output in its order; of `packed` see
    `weight_bytes`."""
    ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
    factors = len(ropes) * max_model_len * spec.attention.head_dim * _FLOAT32_BYTES
    if not spec.has_head or not spec.tie_word_embeddings or on.kind == "cuda":
        return factors
    dense = spec.vocab_size * spec.hidden_size * ITEM_BYTES[dtype]
    return factors + packed.get("embed", dense)


def kv_layout(
    spec: DecoderSpec, dtype: str, block_size: int, tensor_parallel_size: int = 1
) -> KvLayout:
    """Shape of one device's share of a KV block; with fewer heads than devices they are repeated.

    An encoder's holds one layer at a time.
    """
    return KvLayout.uniform(
        block_size=block_size,
        num_layers=spec.num_layers if spec.causal else 1,
        num_kv_heads=_num_kv_heads(spec, tensor_parallel_size),
        head_dim=spec.attention.head_dim,
        dtype=dtype,
    )


def activation_bytes(
    spec: DecoderSpec, dtype: str, limits: StepLimits, tensor_parallel_size: int = 1
) -> int:
    """Most that the tensors of the largest step take at once; see `step_bytes`."""
    attention = spec.attention
    query = attention.num_heads // tensor_parallel_size * attention.head_dim
    key_value = 2 * _num_kv_heads(spec, tensor_parallel_size) * attention.head_dim
    inner = max(_inner_width(spec, index) for index in range(spec.num_layers))
    widths = StepWidths(
        hidden=spec.hidden_size,
        attending=2 * query + key_value,
        inner=-(-inner // tensor_parallel_size),
        vocab=spec.vocab_size if spec.has_head else 0,
    )
    return step_bytes(widths, dtype, limits)


def step_bytes(widths: StepWidths, dtype: str, limits: StepLimits) -> int:
    """Most that the tensors of the largest step take at once, by what is alive at its widest places.

    In a layer: the residual stream and its normed copy, then either queries, keys, values and the
    attention's output, or the MLP's inner tensors. Behind the layers: the logits and the sampler's
    copies of them, or, without a head, the hidden states and what embeddings are made of in float32.
    """
    item = ITEM_BYTES[dtype]
    stream = limits.num_tokens * widths.hidden * 2 * item
    widest = limits.num_tokens * max(widths.attending, widths.inner) * item
    if widths.vocab:
        sampling = widths.vocab * (item + _SAMPLING_BYTES)
        behind = limits.num_seqs * (widths.hidden * item + sampling)
    else:
        behind = limits.num_tokens * widths.hidden * (item + _FLOAT32_BYTES)
    return max(stream + widest, behind)


def num_kv_blocks(layout: KvLayout, kv_cache_memory_gib: float) -> int:
    """Blocks that fit into --kv-cache-memory; ConfigError when not even one does."""
    num_blocks = int(kv_cache_memory_gib * GIB) // layout.num_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"--kv-cache-memory is {kv_cache_memory_gib} GiB, but one block of this model "
            f"takes {layout.num_bytes / GIB:.6f} GiB"
        )
    return num_blocks


def num_step_tokens(max_num_batched_tokens: int, max_model_len: int, *, causal: bool) -> int:
    """Tokens of the largest step: an encoder computes a prompt in one piece, however long it is."""
    return max_num_batched_tokens if causal else max(max_num_batched_tokens, max_model_len)


def num_step_blocks(step: StepLimits, block_size: int) -> int:
    """KV blocks of a step's prompts, the last of each partly filled."""
    return step.num_tokens // block_size + step.num_seqs


def size_text(num_bytes: float) -> str:
    """Bytes for people."""
    if abs(num_bytes) < GIB / 10:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / GIB:.2f} GiB"


def _num_kv_heads(spec: DecoderSpec, tensor_parallel_size: int) -> int:
    return max(1, spec.attention.num_kv_heads // tensor_parallel_size)


def _inner_width(spec: DecoderSpec, index: int) -> int:
    """Numbers per token between a layer's projections: gate and up, their product, and the output."""
    mlp = spec.layers[index].mlp
    if not isinstance(mlp, MoeSpec):
        return _mlp_width(mlp) + spec.hidden_size
    expert = _mlp_width(mlp.expert) + spec.hidden_size
    shared = _mlp_width(mlp.shared) if mlp.shared else 0
    return mlp.num_experts_per_token * expert + shared + mlp.num_experts


def _mlp_width(mlp: MlpSpec) -> int:
    return (3 if mlp.gated else 2) * mlp.intermediate_size


class _Share:
    """How much of a parameter one device holds."""

    def __init__(self, spec: DecoderSpec, tensor_parallel_size: int) -> None:
        attention = spec.attention
        self._size = tensor_parallel_size
        heads = attention.num_heads + 2 * attention.num_kv_heads
        own = attention.num_heads // tensor_parallel_size
        own += 2 * _num_kv_heads(spec, tensor_parallel_size)
        self._qkv = own, heads

    def of(self, name: str, size: int) -> int:
        """Numbers of a parameter of `size` numbers."""
        if name.endswith(_REPLICATED):
            return size
        if name.endswith(("qkv.weight", "qkv.bias")):
            own, all_heads = self._qkv
            return size // all_heads * own
        return -(-size // self._size)


def make_outline_plan(
    outline: Outline,
    dtype: str,
    block_size: int,
    limits: StepLimits,
    on: Hardware,
    kv_dtype: str | None = None,
) -> MemoryPlan:
    """Plan such a model; its KV is of its own type unless told otherwise.

    ConfigError for more than one device, over which it cannot be split.
    """
    if on.tensor_parallel_size > 1:
        raise ConfigError(
            f"--tensor-parallel-size is {on.tensor_parallel_size}, but must be 1 for"
            f" {outline.architecture}, which transformers runs"
        )
    heads = outline.num_heads + outline.num_kv_heads
    widths = StepWidths(
        hidden=outline.hidden_size,
        attending=2 * heads * outline.head_dim,
        inner=3 * outline.inner_size + outline.hidden_size,
        vocab=outline.vocab_size,
    )
    return MemoryPlan(
        usable_bytes=on.usable_bytes,
        weight_bytes=ITEM_BYTES[dtype] * outline.num_parameters,
        runtime_bytes=RUNTIME_BYTES[on.kind],
        table_bytes=0,
        activation_bytes=step_bytes(widths, dtype, limits),
        layout=KvLayout.uniform(
            block_size=block_size,
            num_layers=outline.num_layers,
            num_kv_heads=outline.num_kv_heads,
            head_dim=outline.head_dim,
            dtype=kv_dtype or dtype,
        ),
        max_model_len=limits.max_model_len,
    )
