"""Which experts of a mixture each token uses, and by how much: the best few by a router's logits.

`make_expert_choice` chooses the implementation once, when a model is loaded; all pass the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.expert_choice.interface import (
    ByExpert,
    Choices,
    ExpertChoice,
    ReferenceExpertChoice,
)

__all__ = ["ByExpert", "Choices", "ExpertChoice", "make_expert_choice"]


def make_expert_choice(num_chosen: int, device: torch.device, *, normalize: bool) -> ExpertChoice:
    """A choice of `num_chosen` experts whose weights sum to 1 or, if they aren't to be normalized, are their
    shares among all experts."""
    match backend_for("expert_choice", device):
        case "cuda":
            from pagemesh.kernels.expert_choice.cuda import CudaExpertChoice

            return CudaExpertChoice(num_chosen, normalize=normalize)
        case "cpu" | "reference":
            return ReferenceExpertChoice(num_chosen, normalize=normalize)
