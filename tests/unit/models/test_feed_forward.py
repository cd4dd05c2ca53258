from __future__ import annotations

import pytest
import torch

from pagemesh.kernels.expert_choice import ExpertChoice, make_expert_choice
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.kernels.linear import Dense, Gate, make_linear
from pagemesh.models.feed_forward import Mixture, Mlp, SharedMixture, make_expansion
from pagemesh.models.spec import MlpSpec

HIDDEN, INNER, EXPERTS, CHOSEN = 10, 7, 5, 2


class Weights:
    """Those of an MLP."""

    def __init__(self) -> None:
        self.up, self.down = torch.randn(2 * INNER, HIDDEN), torch.randn(HIDDEN, INNER)

    def reference(self, token: torch.Tensor) -> torch.Tensor:
        gate, up = (self.up @ token).chunk(2)
        return self.down @ (torch.nn.functional.silu(gate) * up)


def stacked(experts: list[Weights]) -> Experts:
    ups, downs = (
        Stack(Dense(torch.stack(weights)), None)
        for weights in ([each.up for each in experts], [each.down for each in experts])
    )
    return make_experts(ups, downs, Gate("silu"))


def choice(*, normalize: bool) -> ExpertChoice:
    return make_expert_choice(CHOSEN, torch.device("cpu"), normalize=normalize)


@pytest.fixture
def experts() -> list[Weights]:
    torch.manual_seed(3)
    return [Weights() for _ in range(EXPERTS)]


@pytest.fixture
def router_weight(experts: list[Weights]) -> torch.Tensor:
    return torch.randn(EXPERTS, HIDDEN)


def reference(
    experts: list[Weights], router_weight: torch.Tensor, token: torch.Tensor, normalize: bool
) -> torch.Tensor:
    shares = torch.softmax(router_weight @ token, dim=0)
    best = shares.argsort(descending=True)[:CHOSEN].tolist()
    total = sum(float(shares[number]) for number in best) if normalize else 1.0
    outputs = [shares[number] / total * experts[number].reference(token) for number in best]
    return torch.stack(outputs).sum(0)


@pytest.mark.parametrize("normalize", [True, False], ids=["chosen", "all"])
@pytest.mark.parametrize("num_tokens", [1, 2, 13])
def test_each_token_is_the_weighted_sum_of_its_best_experts(
    experts: list[Weights], router_weight: torch.Tensor, normalize: bool, num_tokens: int
) -> None:
    mixture = Mixture(
        make_linear(Dense(router_weight)), choice(normalize=normalize), stacked(experts)
    )
    tokens = torch.randn(num_tokens, HIDDEN)
    expected = torch.stack([reference(experts, router_weight, t, normalize) for t in tokens])
    torch.testing.assert_close(mixture.compute(tokens), expected)
    residual = torch.randn(num_tokens, HIDDEN)
    torch.testing.assert_close(mixture.add_to(residual, tokens), residual + expected)


def test_a_shared_expert_is_weighted_by_its_gate(
    experts: list[Weights], router_weight: torch.Tensor
) -> None:
    gate, shared = torch.randn(1, HIDDEN), Weights()
    mlp = Mlp(
        make_expansion(MlpSpec(INNER), Dense(shared.up), None), make_linear(Dense(shared.down))
    )
    chosen = Mixture(make_linear(Dense(router_weight)), choice(normalize=False), stacked(experts))
    mixture = SharedMixture(chosen, mlp, make_linear(Dense(gate)))
    tokens = torch.randn(3, HIDDEN)
    expected = torch.stack(
        [
            reference(experts, router_weight, token, normalize=False)
            + torch.sigmoid(gate @ token) * shared.reference(token)
            for token in tokens
        ]
    )
    torch.testing.assert_close(mixture.compute(tokens), expected)
