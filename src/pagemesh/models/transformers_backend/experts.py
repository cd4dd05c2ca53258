"""Experts as transformers' mixtures have them, and pagemesh's in their place.

transformers stacks the experts of a layer in one module, whose class says how their weights lie there, and computes
them with torch, which sums in an order that follows how many tokens chose the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import torch

from pagemesh.kernels.expert_choice.interface import Choices
from pagemesh.kernels.experts import Experts, Stack, make_experts
from pagemesh.kernels.gated_activation.interface import Gate, ReferenceGatedActivation
from pagemesh.kernels.linear import Dense
from pagemesh.kernels.linear.weight import Quantised

ProjectionName = Literal["gate_up_proj", "down_proj"]

PROJECTIONS: Final[tuple[ProjectionName, ...]] = ("gate_up_proj", "down_proj")
"""Of all experts of a layer, as transformers calls their parameters."""

_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)

_CLAMPS: Final = (("limit", "alpha"), ("swiglu_limit", "swiglu_alpha"))
"""What models call the numbers of a `clamped_swiglu`."""

_LARGEST_GATE: Final = 20.0
"""Beyond what models limit gates to."""


class StackedExperts(NamedTuple):
    """The experts of a layer."""

    path: str
    module: Any  # transformers'
    gate: Gate

    def stored(self, projection: ProjectionName) -> torch.Tensor:
        """[experts, out, in], with its rows as the module has them; no copy."""
        numbers: torch.Tensor = getattr(self.module, projection).detach()
        return numbers.mT if self.module.is_transposed else numbers

    def order(self, projection: ProjectionName) -> torch.Tensor | None:
        """Rows of `stored` in the order that kernels take, gates before ups; None if that is theirs."""
        if projection != "gate_up_proj" or self.module.is_concatenated:
            return None
        rows = self.stored(projection)
        return torch.arange(rows.shape[1], device=rows.device).view(-1, 2).t().flatten()

    def numbers(self, projection: ProjectionName) -> torch.Tensor:
        """[experts, out, in], with rows in the order that kernels take."""
        return self._in_order(self.stored(projection), projection)

    def replace(self, projection: ProjectionName, numbers: torch.Tensor) -> None:
        """Make the module compute with other `numbers`."""
        order = self.order(projection)
        if order is not None:
            numbers = numbers.index_select(1, order.argsort())
        parameter = getattr(self.module, projection)
        # Files that a weight lies in are not written to.
        parameter.data = numbers.mT.contiguous() if self.module.is_transposed else numbers

    def make(self, packed: Mapping[str, Quantised]) -> BatchInvariantExperts:
        """Of the `packed` weights at `weight_path`, and of numbers where there are none."""
        ups, downs = (self._stack(each, packed) for each in PROJECTIONS)
        return BatchInvariantExperts(make_experts(ups, downs, self.gate), ups.weight.dtype)

    def weight_path(self, projection: ProjectionName) -> str:
        """Of its parameter."""
        return f"{self.path}.{projection}"

    def _stack(self, projection: ProjectionName, packed: Mapping[str, Quantised]) -> Stack:
        weight = packed.get(self.weight_path(projection))
        bias = getattr(self.module, f"{projection}_bias") if self.module.has_bias else None
        if bias is not None:
            bias = self._in_order(bias.detach(), projection)
        if weight is None:
            return Stack(Dense(self.numbers(projection).contiguous()), bias)
        device = self.stored(projection).device
        return Stack(weight.moved(lambda tensor: tensor.to(device)), bias)

    def _in_order(self, rows: torch.Tensor, projection: ProjectionName) -> torch.Tensor:
        order = self.order(projection)
        return rows if order is None else rows.index_select(1, order)


class BatchInvariantExperts(torch.nn.Module):
    """Computes what a module of experts does, a token the same bits whatever the others choose."""

    def __init__(self, experts: Experts, dtype: torch.dtype) -> None:
        """`dtype` is that of the hidden states."""
        super().__init__()
        self._experts = experts
        self._dtype = dtype

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[..., hidden] of as many, of each token's experts [T, choices], and of how much of them."""
        if hidden_states.dtype != self._dtype:
            raise ValueError(
                f"hidden states of {hidden_states.dtype} do not fit experts in {self._dtype}"
            )
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        choices = Choices(top_k_weights, top_k_index.to(torch.int64))
        return self._experts(rows, choices).view(hidden_states.shape)


def replace_experts(model: torch.nn.Module, packed: Mapping[str, Quantised]) -> None:
    """Replace modules of experts, on the device where they are; each is dropped as soon as it is copied.

    `packed` has weights by the paths of parameters that are what those stand for.
    """
    for experts in stacked_experts(model):
        parent, _, name = experts.path.rpartition(".")
        setattr(model.get_submodule(parent), name, experts.make(packed))


def stacked_experts(model: torch.nn.Module) -> list[StackedExperts]:
    """Those of a model that pagemesh's can take the place of.

    Those without gates, with norms behind them or with another gate than kernels know stay as they are.
    """
    found = []
    for path, module in model.named_modules():
        if _can_replace(module):
            gate = _gate_of(module)
            if gate is not None:
                found.append(StackedExperts(path, module, gate))
    return found


def projections(model: torch.nn.Module) -> Iterator[tuple[StackedExperts, ProjectionName]]:
    """Both of each module of experts that can be replaced."""
    return ((experts, each) for experts in stacked_experts(model) for each in PROJECTIONS)


def _can_replace(module: Any) -> bool:
    if not getattr(module, "has_gate", False) or not hasattr(module, "is_concatenated"):
        return False
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return False
    if getattr(module, "has_post_expert_norm", False):
        return False
    return all(_can_multiply(getattr(module, name, None)) for name in PROJECTIONS)


def _can_multiply(stack: Any) -> bool:
    return (
        isinstance(stack, torch.nn.Parameter)
        and stack.dim() == 3
        and stack.dtype in _DTYPES
        and stack.numel() > 0
    )


def _gate_of(module: Any) -> Gate | None:
    """What the module's own code does with gates and ups, found by what comes out of it."""
    size = 32
    one_side = torch.linspace(-_LARGEST_GATE, _LARGEST_GATE, size, device=module.down_proj.device)
    gates, ups = one_side.expand(size, size), one_side.unsqueeze(1).expand(size, size)
    rows = torch.cat((gates, ups), dim=1)
    given = rows if module.is_concatenated else torch.stack((gates, ups), dim=2).flatten(1)
    wanted = module._apply_gate(given.clone())
    for gate in _known_gates(module):
        if torch.allclose(ReferenceGatedActivation(gate)(rows), wanted, rtol=1e-4, atol=1e-4):
            return gate
    return None


def _known_gates(module: Any) -> list[Gate]:
    gates = [Gate("silu"), Gate("geglu"), Gate("gelu_tanh")]
    for names in _CLAMPS:
        limit, alpha = (getattr(module, name, None) for name in names)
        if limit is not None and alpha is not None:
            gates.append(Gate("clamped_swiglu", float(limit), float(alpha)))
    return gates
