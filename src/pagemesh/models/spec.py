"""What a decoder is made of, as plain data: the meeting point of architectures, weights and forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the whole head."""

    theta: float
    """Base of the geometric series of frequencies."""

    kind: RopeKind = "default"
    """How the frequencies are stretched for contexts longer than those first trained on."""

    factor: float = 1.0
    """linear and llama3: how much longer the context became."""

    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_max_position / this are stretched by the whole factor."""

    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_max_position / this stay as they are."""

    original_max_position: int = 0
    """llama3: context length before stretching, in tokens."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm decoder: RMSNorm, grouped-query attention with RoPE, gated SiLU MLP."""

    architecture: str
    """Name in config.json, for example "LlamaForCausalLM"."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    """Whether the output projection is the embedding table."""

    attention_bias: bool
    """Whether the four attention projections have biases."""

    mlp_bias: bool
    """Whether the three MLP projections have biases."""

    max_position: int
    """Longest context in tokens."""

    @property
    def num_qkv_heads(self) -> int:
        """Heads of query, key and value together."""
        return self.num_heads + 2 * self.num_kv_heads

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter under the names that an architecture maps to its checkpoint's names.

        The names are "embed", "final_norm", "lm_head" (unless tied) and "layers.{i}.{part}"; the
        parts are those of `layer_shapes`.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab_size, self.hidden_size),
            "final_norm": (self.hidden_size,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head"] = (self.vocab_size, self.hidden_size)
        layer = self.layer_shapes()
        for index in range(self.num_layers):
            shapes.update({f"layers.{index}.{part}": shape for part, shape in layer.items()})
        return shapes

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of one layer: projections as [out, in], biases and norms flat."""
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = {
            "q": (query, self.hidden_size),
            "k": (key_value, self.hidden_size),
            "v": (key_value, self.hidden_size),
            "o": (self.hidden_size, query),
        }
        mlp = {
            "gate": (self.intermediate_size, self.hidden_size),
            "up": (self.intermediate_size, self.hidden_size),
            "down": (self.hidden_size, self.intermediate_size),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "attention_norm": (self.hidden_size,),
            "mlp_norm": (self.hidden_size,),
        }
        for projections, has_bias in ((attention, self.attention_bias), (mlp, self.mlp_bias)):
            for name, shape in projections.items():
                shapes[f"{name}.weight"] = shape
                if has_bias:
                    shapes[f"{name}.bias"] = shape[:1]
        return shapes
