"""From a checkpoint's tensors to the decoder's fused weights, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.decoder import DecoderWeights, LayerWeights
from pagemesh.models.rope import pair_rows
from pagemesh.models.spec import DecoderSpec


class WeightReader:
    """Reads parameters by the spec's names and converts them to the type that the model runs in."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensor_name: Callable[[str], str],
        spec: DecoderSpec,
        dtype: torch.dtype,
    ) -> None:
        self._checkpoint = checkpoint
        self._tensor_name = tensor_name
        self._spec = spec
        self._dtype = dtype

    def read(self) -> DecoderWeights:
        """All weights, copied out of the files."""
        spec = self._spec
        embed = self._matrix("embed")
        return DecoderWeights(
            embed=embed,
            layers=[self._layer(f"layers.{index}") for index in range(spec.num_layers)],
            final_norm=self._norm("final_norm"),
            lm_head=make_linear(embed if spec.tie_word_embeddings else self._matrix("lm_head")),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        has_attention_bias, has_mlp_bias = self._spec.attention_bias, self._spec.mlp_bias
        return LayerWeights(
            attention_norm=self._norm(f"{prefix}.attention_norm"),
            qkv=self._linear(prefix, ("q", "k", "v"), has_attention_bias),
            o=self._linear(prefix, ("o",), has_attention_bias),
            mlp_norm=self._norm(f"{prefix}.mlp_norm"),
            gate_up=self._linear(prefix, ("gate", "up"), has_mlp_bias),
            down=self._linear(prefix, ("down",), has_mlp_bias),
        )

    def _linear(self, prefix: str, projections: Sequence[str], has_bias: bool) -> Linear:
        return make_linear(
            self._fused(prefix, projections, "weight"),
            self._fused(prefix, projections, "bias") if has_bias else None,
        )

    def _fused(self, prefix: str, projections: Sequence[str], kind: str) -> torch.Tensor:
        """The projections' rows below each other."""
        shapes = self._spec.layer_shapes()
        parts = [shapes[f"{projection}.{kind}"] for projection in projections]
        fused = torch.empty(sum(part[0] for part in parts), *parts[0][1:], dtype=self._dtype)
        pieces = torch.split(fused, [part[0] for part in parts])
        for projection, piece in zip(projections, pieces, strict=True):
            tensor = self._checkpoint.read(self._tensor_name(f"{prefix}.{projection}.{kind}"))
            if projection == "q":
                tensor = pair_rows(tensor, self._spec.num_heads)
            elif projection == "k":
                tensor = pair_rows(tensor, self._spec.num_kv_heads)
            piece.copy_(tensor)
        return fused

    def _matrix(self, parameter: str) -> torch.Tensor:
        return self._checkpoint.read(self._tensor_name(parameter)).to(self._dtype, copy=True)

    def _norm(self, parameter: str) -> torch.Tensor:
        return self._checkpoint.read(self._tensor_name(parameter)).to(torch.float32, copy=True)
