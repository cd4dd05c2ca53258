"""What choosing tokens takes and gives on every device, and the draws that it depends on.

Draws are a pure function of (seed, position), so that no history has to be kept or replayed: Philox4x32-10 of
Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011,
https://doi.org/10.1145/2063384.2063405).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
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
    output, the forbidden ones, and where these end: there the next row's begin."""

    entry_ids: torch.Tensor
    """Token ids, int32 [N]; within a row, each once among those of a kind."""

    entry_values: torch.Tensor
    """A bias, or how often a token is in the output, float32 [N]; else without meaning."""

    mask_rows: torch.Tensor
    """The mask of each edited row, int32 [E]; -1 for none."""

    masks: torch.Tensor
    """Bit i % 32 of word i // 32 says whether token i may be chosen, int32 [M, ceil(vocab / 32)]."""


class TokenChooser(Protocol):
    """Chooses a token for each row of logits [R, vocab], which stay as they are; waits for no device."""

    def __call__(
        self,
        logits: torch.Tensor,
        plan: SamplingPlan | None,
        token_ids: torch.Tensor,
        flags: torch.Tensor,
    ) -> None:
        """Write ids, int64 [R], and flags, int32 [R].

        In order: biases, repetition penalty, frequency and presence penalty, forbidden tokens, masks,
        temperature, top-k, min-p, top-p, and the inverse of the distribution function in order of ids. Without
        a plan, each row's likeliest token. An id without meaning, of a row with a flag, is one of the
        vocabulary.
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


_NUM_ROUNDS = 10
_FEW = 4
"""Draws that take less time one by one than the arrays do."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Columns against the words of all draws: [2, 1].
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
# The key of each round is the seed plus a multiple of the Weyl constants: [rounds, 2, 1].
_KEY_STEPS = (
    np.arange(_NUM_ROUNDS, dtype=np.uint64)[:, None, None]
    * np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
) & _LOW


Numbers = Sequence[int] | npt.NDArray[np.uint64] | npt.NDArray[np.int64]


def uniform_draws(seeds: Numbers, positions: Numbers) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per pair of a 64-bit seed and a 64-bit position, with 53 random bits each."""
    if len(seeds) <= _FEW:
        return np.array(
            [_draw(int(s), int(p)) for s, p in zip(seeds, positions, strict=True)], np.float64
        )
    words = philox(
        _halves(seeds), np.concatenate([_halves(positions), np.zeros_like(_halves(seeds))])
    )
    bits = (words[0] << _HALF | words[1]) >> np.uint64(11)
    draws: npt.NDArray[np.float64] = bits * 2.0**-53
    return draws


def _draw(seed: int, position: int) -> float:
    """Of one pair, without arrays: `philox` of a column, of which two words are needed."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    a, b, c, d = position & 0xFFFFFFFF, position >> 32, 0, 0
    for _ in range(_NUM_ROUNDS):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (second >> 32) ^ b ^ low, second & 0xFFFFFFFF
        c, d = (first >> 32) ^ d ^ high, first & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return ((a << 32 | b) >> 11) * 2.0**-53


def philox(
    keys: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of each column: 32-bit words as uint64, keys [2, n], counters [4, n] → [4, n]."""
    round_keys = (_KEY_STEPS + keys) & _LOW
    even, odd = counters[0::2], counters[1::2]
    for round_key in round_keys:
        products = _MULTIPLIERS * even
        even = (products >> _HALF)[::-1] ^ odd ^ round_key
        odd = (products & _LOW)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _halves(values: Numbers) -> npt.NDArray[np.uint64]:
    """Low and high 32-bit words, [2, n]."""
    whole = np.array(values, dtype=np.uint64)
    return np.stack([whole & _LOW, whole >> _HALF])
