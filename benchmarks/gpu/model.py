"""Models of real shapes whose weights are made on the device, with the runner that an engine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pagemesh.engine.accelerator import Accelerator, Graph
from pagemesh.engine.cuda.kv_pool import DeviceBlockMover, KvPool
from pagemesh.engine.cuda.runner import CudaRunner
from pagemesh.kernels.linear import Dense, Weight
from pagemesh.models.assembly import assemble, make_layer_attention
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.interface import ModelShape
from pagemesh.models.loader import LoadedModel
from pagemesh.models.registry import find_architecture, unknown_architecture
from pagemesh.models.rope import fix_ropes
from pagemesh.models.spec import DecoderSpec, MoeSpec

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
"""Llama 3 8B (https://arxiv.org/abs/2407.21783)."""

QWEN_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
}
"""Qwen 3 30B-A3B (https://arxiv.org/abs/2505.09388)."""

TOY_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
"""In place of a model's own, for the interpreter."""

WEIGHT_STD = 0.02
HEAD_STD = 0.2
"""Logits then have a deviation of some ten: at temperature 1 few tokens stand out."""


class RandomParameters:
    """`Parameters` that are made when they are asked for."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._shapes = spec.parameter_shapes()
        self._dtype = dtype

    def read(self, name: str) -> torch.Tensor:
        """Ones for norms, in float32; else normally distributed numbers."""
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self.device)
        parameter = torch.empty(shape, dtype=self._dtype, device=self.device)
        return parameter.normal_(0.0, HEAD_STD if name == "lm_head" else WEIGHT_STD)

    def get(self, name: str) -> torch.Tensor | None:
        """The same for a parameter that not every model has."""
        return self.read(name) if name in self._shapes else None

    def weight(self, name: str) -> Weight:
        """One that rows are multiplied with."""
        return Dense(self.read(name))


@dataclass
class KeepingAccelerator:
    """Another accelerator, whose graphs can be found again."""

    inner: Accelerator
    graphs: list[Graph] = field(default_factory=list)
    """In the order in which they were captured."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is the other's."""
        return getattr(self.inner, name)

    def capture(self, work: Callable[[], None]) -> Graph:
        graph = self.inner.capture(work)
        self.graphs.append(graph)
        return graph


class Subject:
    """A model on a device with its KV cache and its runner."""

    def __init__(
        self,
        config: Mapping[str, Any],
        accelerator: Accelerator,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int = 16,
    ) -> None:
        keeping = KeepingAccelerator(accelerator)
        self._graphs = keeping.graphs
        self.num_blocks = num_blocks
        self.block_size = block_size
        settings = ConfigJson(dict(config), "the probe")
        architecture = find_architecture(settings)
        if architecture is None:
            raise unknown_architecture(settings)
        self.spec = fix_ropes(architecture.make_spec(settings), max_model_len)
        with accelerator.computing():
            self.model = _load(self.spec, max_model_len, accelerator.device)
        layout = self.model.block_layout(block_size)
        pool = KvPool(layout, num_blocks, accelerator.device)
        accelerator.synchronize()
        with accelerator.computing():
            for layer in pool.layers:
                layer.normal_()
        no_swap_space = accelerator.pin(0).view(0, layout.num_bytes)
        as_accelerator: Any = keeping
        mover = DeviceBlockMover(pool, as_accelerator, no_swap_space)
        self.runner = CudaRunner(
            self.model,
            pool,
            mover,
            as_accelerator,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        accelerator.synchronize()

    def capture(self, sizes: Sequence[int], chunk_sizes: Sequence[int] = ()) -> dict[int, Graph]:
        """Capture decodes of these sizes and steps of so many tokens, ascending; by size, the graphs of those decodes
        that could be."""
        first = len(self._graphs) + len(chunk_sizes)
        self.runner.capture(sizes, chunk_sizes)
        return dict(zip(reversed(sizes), self._graphs[first:], strict=False))

    def num_layer_weights(self) -> int:
        """That a token is multiplied with before the output head."""
        return sum(map(self.spec.num_active_weights, range(self.spec.num_layers)))

    def weight_bytes(self, num_rows: int = 1) -> int:
        """That a decode of so many sequences reads; of experts those that are chosen, about."""
        total = self.num_layer_weights() + self.spec.vocab_size * self.spec.hidden_size
        for layer in self.spec.layers:
            if isinstance(layer.mlp, MoeSpec):
                moe = layer.mlp
                share = moe.num_experts_per_token / moe.num_experts
                num_read = moe.num_experts * (1.0 - (1.0 - share) ** num_rows)
                expert = 3 * self.spec.hidden_size * moe.expert.intermediate_size
                total += int((num_read - moe.num_experts_per_token) * expert)
        return 2 * total

    def kv_bytes(self, num_tokens: int) -> int:
        """Keys and values of so many tokens, in all layers."""
        attention = self.spec.attention
        per_token = 2 * attention.num_kv_heads * attention.head_dim * 2
        return num_tokens * per_token * self.spec.num_layers


def _load(spec: DecoderSpec, max_model_len: int, device: torch.device) -> LoadedModel:
    parameters = RandomParameters(spec, torch.bfloat16, device)
    return LoadedModel(
        decoder=assemble(spec, parameters, max_model_len),
        shape=ModelShape.of(spec),
        layer_attention=make_layer_attention(spec, parameters),
        dtype=torch.bfloat16,
        fingerprint="random",
        arithmetic="",
        max_model_len=max_model_len,
        eos_token_ids=(),
        folder=Path(),
        pooling=None,
        generates=spec.has_head,
        kv_dtype=None,
    )


def sizes_of(config: Mapping[str, Any], *, toy: bool) -> dict[str, Any]:
    """A model's settings, or those of a toy of its kind."""
    return dict(config) | (TOY_SIZES if toy else {})
