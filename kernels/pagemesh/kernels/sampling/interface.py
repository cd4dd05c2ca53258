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


def check_plan(
    logits: torch.Tensor,
    vocab_size: int,
    plan: SamplingPlan,
    token_ids: torch.Tensor,
    flags: torch.Tensor,
) -> None:
    """Raise ValueError unless the logits, all parts of the plan and the results fit each other."""
    if logits.ndim != 2 or logits.shape[1] != vocab_size or logits.stride(1) != 1:
        raise ValueError(
            f"logits {list(logits.shape)} with strides {list(logits.stride())} are not dense rows of"
            f" {vocab_size}"
        )
    num_rows, num_edited = len(logits), len(plan.mask_rows)
    rows, edited, entries = (num_rows,), (num_edited,), (len(plan.entry_ids),)
    fitting: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "temperatures": (torch.float64, rows),
        "top_ps": (torch.float64, rows),
        "min_ps": (torch.float64, rows),
        "seeds": (torch.int64, rows),
        "positions": (torch.int64, rows),
        "top_ks": (torch.int32, rows),
        "drawn_rows": (torch.int32, (len(plan.drawn_rows),)),
        "edit_slots": (torch.int32, rows),
        "penalties": (torch.float32, (*edited, 3)),
        "entry_bounds": (torch.int32, (*edited, 5)),
        "entry_ids": (torch.int32, entries),
        "entry_values": (torch.float32, entries),
        "mask_rows": (torch.int32, edited),
        "masks": (torch.int32, (len(plan.masks), -(-vocab_size // 32))),
        "token_ids": (torch.int64, rows),
        "flags": (torch.int32, rows),
    }
    parts = plan._asdict() | {"token_ids": token_ids, "flags": flags}
    for name, (dtype, shape) in fitting.items():
        part: torch.Tensor = parts[name]
        is_of_kind = part.dtype == dtype and part.device == logits.device
        if not is_of_kind or part.shape != shape or not part.is_contiguous():
            raise ValueError(
                f"{name}, {part.dtype} {list(part.shape)} on {part.device}, does not fit logits"
                f" {list(logits.shape)} on {logits.device}, of which {num_edited} rows are edited"
            )
