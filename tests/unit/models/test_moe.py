from __future__ import annotations

import pytest
import torch

from pagemesh.kernels.linear import make_linear
from pagemesh.models.expansion import make_expansion
from pagemesh.models.mlp import Mlp
from pagemesh.models.moe import Mixture, Router, SharedMixture, share_of_all, share_of_chosen
from pagemesh.models.spec import MlpSpec

HIDDEN, INNER, EXPERTS, CHOSEN = 10, 7, 5, 2


class Weights:
    """An MLP's weights, also as plain matrices."""

    def __init__(self) -> None:
        self.up, self.down = torch.randn(2 * INNER, HIDDEN), torch.randn(HIDDEN, INNER)
        expand = make_expansion(MlpSpec(INNER), self.up, None)
        self.mlp = Mlp(expand, make_linear(self.down))

    def reference(self, token: torch.Tensor) -> torch.Tensor:
        gate, up = (self.up @ token).chunk(2)
        return self.down @ (torch.nn.functional.silu(gate) * up)


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
    weighting = share_of_chosen if normalize else share_of_all
    mixture = Mixture(
        Router(make_linear(router_weight), CHOSEN, weighting), [each.mlp for each in experts]
    )
    tokens = torch.randn(num_tokens, HIDDEN)
    expected = torch.stack([reference(experts, router_weight, t, normalize) for t in tokens])
    torch.testing.assert_close(mixture.compute(tokens), expected)
    residual = torch.randn(num_tokens, HIDDEN)
    torch.testing.assert_close(mixture.add_to(residual, tokens), residual + expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_does_not_depend_on_the_others_by_a_single_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    experts = [
        Mlp(
            make_expansion(MlpSpec(48), torch.randn(96, 64, dtype=dtype), None),
            make_linear(torch.randn(64, 48, dtype=dtype)),
        )
        for _ in range(8)
    ]
    router = Router(make_linear(torch.randn(8, 64, dtype=dtype)), 3, share_of_chosen)
    tokens = torch.randn(40, 64, dtype=dtype)
    together = Mixture(router, experts).compute(tokens)
    alone = [Mixture(router, experts).compute(token.unsqueeze(0)) for token in tokens]
    assert torch.equal(torch.cat(alone), together)


def test_experts_without_tokens_are_not_computed(experts: list[Weights]) -> None:
    class Unused:
        def compute(self, hidden: torch.Tensor) -> torch.Tensor:
            raise AssertionError("no token chose this expert")

    weight = torch.zeros(EXPERTS, HIDDEN)
    weight[1:3] = 1.0
    all_experts = [
        each.mlp if number in (1, 2) else Unused() for number, each in enumerate(experts)
    ]
    router = Router(make_linear(weight), CHOSEN, share_of_chosen)
    mixture = Mixture(router, all_experts)  # type: ignore[arg-type]
    token = torch.ones(1, HIDDEN)
    expected = (experts[1].reference(token[0]) + experts[2].reference(token[0])) / 2
    torch.testing.assert_close(mixture.compute(token), expected.unsqueeze(0))


def test_a_shared_expert_is_weighted_by_its_gate(
    experts: list[Weights], router_weight: torch.Tensor
) -> None:
    gate, shared = torch.randn(1, HIDDEN), Weights()
    router = Router(make_linear(router_weight), CHOSEN, share_of_all)
    mixture = SharedMixture(
        Mixture(router, [each.mlp for each in experts]), shared.mlp, make_linear(gate)
    )
    tokens = torch.randn(3, HIDDEN)
    expected = torch.stack(
        [
            reference(experts, router_weight, token, normalize=False)
            + torch.sigmoid(gate @ token) * shared.reference(token)
            for token in tokens
        ]
    )
    torch.testing.assert_close(mixture.compute(tokens), expected)
