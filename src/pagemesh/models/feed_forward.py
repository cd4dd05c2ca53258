"""Puts the dense or sparse half of a layer together."""

from __future__ import annotations

from pagemesh.kernels.expert_choice import make_expert_choice
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.models.expansion import gate_of, make_expansion
from pagemesh.models.mlp import FeedForward, Mlp
from pagemesh.models.moe import Mixture, SharedMixture
from pagemesh.models.parameters import Part
from pagemesh.models.spec import MlpSpec, MoeSpec


def make_feed_forward(mlp: MlpSpec | MoeSpec, part: Part) -> FeedForward:
    """The MLP or mixture of a layer from the layer's parameters."""
    if isinstance(mlp, MlpSpec):
        return _make_mlp(mlp, part, "")
    choose = make_expert_choice(mlp.num_experts_per_token, part.device, normalize=mlp.normalize)
    mixture = Mixture(part.linear("router"), choose, _make_experts(mlp, part))
    if mlp.shared is None:
        return mixture
    return SharedMixture(
        mixture, _make_mlp(mlp.shared, part, "shared."), part.linear("shared_gate")
    )


def _make_mlp(mlp: MlpSpec, part: Part, prefix: str) -> Mlp:
    weight, bias = part.read(f"{prefix}up.weight"), part.get(f"{prefix}up.bias")
    return Mlp(make_expansion(mlp, weight, bias), part.linear(f"{prefix}down"))


def _make_experts(moe: MoeSpec, part: Part) -> Experts:
    ups, downs = (
        Stack(part.read(f"{name}.weight"), part.get(f"{name}.bias"))
        for name in ("experts.up", "experts.down")
    )
    return make_experts(ups, downs, gate_of(moe.expert))
