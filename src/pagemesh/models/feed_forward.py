"""The second half of a layer: an MLP, or a mixture of experts of which each token uses the best few.

(Shazeer et al. 2017, https://arxiv.org/abs/1701.06538.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from pagemesh.kernels.expert_choice import ExpertChoice, make_expert_choice
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.kernels.linear import Gate, Linear, Weight, make_gated_linear, make_linear
from pagemesh.models.parameters import ParameterScope
from pagemesh.models.spec import MlpSpec, MoeSpec

Expansion = Callable[[torch.Tensor], torch.Tensor]
"""[T, hidden] → [T, intermediate]."""


def make_expansion(mlp: MlpSpec, weight: Weight, bias: torch.Tensor | None) -> Expansion:
    """Projection and activation; the weight is [2 · intermediate, hidden] when there are gates."""
    if mlp.activation == "gelu":
        linear = make_linear(weight, bias)
        return lambda hidden: functional.gelu(linear(hidden))
    return make_gated_linear(weight, bias, gate_of(mlp))


def gate_of(mlp: MlpSpec) -> Gate:
    """That of an MLP that has gates."""
    assert mlp.activation != "gelu"
    return Gate(mlp.activation, mlp.limit, mlp.alpha)


def make_feed_forward(mlp: MlpSpec | MoeSpec, scope: ParameterScope) -> FeedForward:
    """The MLP or mixture of a layer from the layer's parameters."""
    if isinstance(mlp, MlpSpec):
        return _make_mlp(mlp, scope, "")
    choose = make_expert_choice(mlp.num_experts_per_token, scope.device, normalize=mlp.normalize)
    mixture = Mixture(scope.linear("router"), choose, _make_experts(mlp, scope))
    if mlp.shared is None:
        return mixture
    return SharedMixture(
        mixture, _make_mlp(mlp.shared, scope, "shared."), scope.linear("shared_gate")
    )


def _make_mlp(mlp: MlpSpec, scope: ParameterScope, prefix: str) -> Mlp:
    weight, bias = scope.weight(f"{prefix}up.weight"), scope.get(f"{prefix}up.bias")
    return Mlp(make_expansion(mlp, weight, bias), scope.linear(f"{prefix}down"))


def _make_experts(moe: MoeSpec, scope: ParameterScope) -> Experts:
    ups, downs = (
        Stack(scope.weight(f"{name}.weight"), scope.get(f"{name}.bias"))
        for name in ("experts.up", "experts.down")
    )
    return make_experts(ups, downs, gate_of(moe.expert))


class FeedForward(Protocol):
    """What a layer does after attention: one MLP, or a mixture of them."""

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        ...

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The sum of [T, hidden] and `compute`, as a new tensor."""
        ...


class Mlp:
    """Gate, up and the activation, then down."""

    def __init__(self, expand: Expansion, down: Linear) -> None:
        self.expand = expand
        self.down = down

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(self.expand(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.down.add_to(residual, self.expand(hidden))


class Mixture:
    """A router, which gives a logit for each expert, and the experts that are chosen by these."""

    def __init__(self, router: Linear, choose: ExpertChoice, experts: Experts) -> None:
        self._router = router
        self._choose = choose
        self._experts = experts

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._experts(hidden, self._choose(self._router(hidden)))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self._experts.add_to(residual, hidden, self._choose(self._router(hidden)))


class SharedMixture:
    """Experts that are chosen and one that all tokens use, weighted by its own gate (Qwen 2 MoE)."""

    def __init__(self, mixture: Mixture, shared: FeedForward, gate: Linear) -> None:
        """`gate` gives one number."""
        self._mixture = mixture
        self._shared = shared
        self._gate = gate

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        # A sigmoid, row by row: torch's own rounds a row by where it lies among the others.
        gate = functional.pad(self._gate(hidden), (0, 1))
        weight = torch.softmax(gate, dim=-1, dtype=torch.float32)[:, :1].to(hidden.dtype)
        return self._shared.compute(hidden).mul_(weight).add_(self._mixture.compute(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.compute(hidden).add_(residual)
