"""What choosing tokens takes and gives on a device that the host does not wait for."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import torch

NOT_FINITE: Final = 1
"""Flag of a row whose logits are not finite: a NaN, an infinity above 0, or nothing but -inf."""

NOTHING_LEFT: Final = 2
"""Flag of a row whose edits leave no token."""


class SamplingPlan(NamedTuple):
    """What is asked of R rows, of which E are edited and D are drawn; all on the device of the logits."""

    temperatures: torch.Tensor
    """float64 [R]; without meaning for rows that are not drawn."""

    top_ps: torch.Tensor
    """float64 [R]; 1 keeps all."""

    min_ps: torch.Tensor
    """float64 [R]; 0 keeps all."""

    seeds: torch.Tensor
    """The bits of unsigned numbers, int64 [R]."""

    positions: torch.Tensor
    """int64 [R]."""

    top_ks: torch.Tensor
    """int32 [R]; 0 keeps all, others are less than the vocabulary."""

    drawn_rows: torch.Tensor
    """The rows that are drawn, int32 [D]; the others take their likeliest token."""

    edit_slots: torch.Tensor
    """The number of each row among the edited ones, int32 [R]; -1 for rows that are not edited."""

    penalties: torch.Tensor
    """Repetition, frequency and presence penalty, float32 [E, 3]."""

    entry_bounds: torch.Tensor
    """int32 [E, 5]: where in `entry_ids` a row's biased tokens begin, those it has seen, those of its
    output, the forbidden ones, and where these end."""

    entry_ids: torch.Tensor
    """Token ids, int32 [N]; within a row, each once among those of a kind."""

    entry_values: torch.Tensor
    """A bias, or how often a token is in the output, float32 [N]; else without meaning."""

    mask_rows: torch.Tensor
    """The mask of each edited row, int32 [E]; -1 for none."""

    masks: torch.Tensor
    """Bit i % 32 of word i // 32 says whether token i may be chosen, int32 [M, ceil(vocab / 32)]."""


class TokenChooser(Protocol):
    """Chooses a token for each row of logits [R, vocab] as `reference` does, and waits for nothing."""

    def __call__(
        self,
        logits: torch.Tensor,
        plan: SamplingPlan,
        token_ids: torch.Tensor,
        flags: torch.Tensor,
    ) -> None:
        """Write ids, int64 [R], and flags, int32 [R].

        In order: biases, repetition penalty, frequency and presence penalty, forbidden tokens, masks,
        temperature, top-k, min-p, top-p, and the inverse of the distribution function in order of ids. An
        id without meaning, of a row with a flag, is one of the vocabulary.
        """
        ...


def check_plan(logits: torch.Tensor, vocab_size: int, plan: SamplingPlan) -> None:
    """Raise ValueError unless the logits and all parts of the plan fit each other."""
    if logits.ndim != 2 or logits.shape[1] != vocab_size or logits.stride(1) != 1:
        raise ValueError(
            f"logits {list(logits.shape)} with strides {list(logits.stride())} are not dense rows of"
            f" {vocab_size}"
        )
    num_rows, num_edited = len(logits), len(plan.mask_rows)
    shapes = {
        "edit_slots": (num_rows,),
        "penalties": (num_edited, 3),
        "entry_bounds": (num_edited, 5),
        "entry_values": (len(plan.entry_ids),),
        "masks": (len(plan.masks), -(-vocab_size // 32)),
    }
    for name in ("temperatures", "top_ps", "min_ps", "seeds", "positions", "top_ks"):
        shapes[name] = (num_rows,)
    for name, shape in shapes.items():
        found: torch.Tensor = getattr(plan, name)
        if found.shape != shape or not found.is_contiguous() or found.device != logits.device:
            raise ValueError(
                f"{name} {list(found.shape)} on {found.device} does not fit logits"
                f" {list(logits.shape)} on {logits.device}, of which {num_edited} rows are edited"
            )
