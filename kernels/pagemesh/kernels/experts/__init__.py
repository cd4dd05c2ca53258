"""The experts of a mixture (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538).

`make_experts` chooses the implementation once, when their weights are loaded; all pass the same tests.
"""

from __future__ import annotations

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.experts.interface import Experts, ReferenceExperts, Stack
from pagemesh.kernels.gated_activation.interface import Gate

__all__ = ["Experts", "Stack", "make_experts"]


def make_experts(ups: Stack, downs: Stack, gate: Gate) -> Experts:
    """Experts of first projections [experts, 2 · n, hidden], gates before ups, and second ones [experts,
    hidden, n]. A weight may be brought into another layout, as a copy: drop the original."""
    match backend_for("experts", ups.weight.device):
        case "cpu":
            from pagemesh.kernels.experts.cpu import make_cpu_experts

            return make_cpu_experts(ups, downs, gate)
        case "cuda":
            from pagemesh.kernels.experts.cuda import CudaExperts

            return CudaExperts(ups, downs, gate)
        case "reference":
            return ReferenceExperts(ups, downs, gate)
