from __future__ import annotations

import numpy as np
import pytest

from pagemesh.kernels.sampling.interface import philox, uniform_draws

# Known answers of philox4x32-10 from the authors' library, Random123 (tests/kat_vectors).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_philox_gives_the_known_answers_also_side_by_side() -> None:
    counters = np.array([words(counter) for counter, _, _ in KNOWN_ANSWERS], dtype=np.uint64).T
    keys = np.array([words(key) for _, key, _ in KNOWN_ANSWERS], dtype=np.uint64).T
    expected = [words(answer) for _, _, answer in KNOWN_ANSWERS]
    assert philox(keys, counters).T.tolist() == expected
    for column in range(3):
        alone = philox(keys[:, column : column + 1], counters[:, column : column + 1])
        assert alone[:, 0].tolist() == expected[column]


def test_the_first_draw_is_made_of_the_first_two_words() -> None:
    assert uniform_draws([0], [0]).tolist() == [(0x6627E8D5E169C58D >> 11) / 2**53]


def test_draws_do_not_depend_on_their_neighbours() -> None:
    seeds = [1, 2, 2**64 - 1, 1, 3, 2**63, 2**32, 77]
    positions = [5, 5, 0, 6, 2**63 - 1, 2**32, 2**31, 123]
    together = uniform_draws(seeds, positions).tolist()
    alone = [uniform_draws([s], [p])[0] for s, p in zip(seeds, positions, strict=True)]
    assert together == alone
    assert len(set(together)) == 8


def test_both_halves_of_the_seed_count() -> None:
    draws = uniform_draws([1, 1 << 32, (1 << 32) + 1], [0, 0, 0])
    assert len(set(draws.tolist())) == 3


@pytest.mark.parametrize("by", ["seed", "position"])
def test_draws_are_uniform(by: str) -> None:
    counting, fixed = list(range(20_000)), [42] * 20_000
    draws = uniform_draws(*((counting, fixed) if by == "seed" else (fixed, counting)))
    counts = np.bincount((draws * 50).astype(int), minlength=50)
    chi_square = float(((counts - 400) ** 2 / 400).sum())
    assert counts.size == 50
    # 49 degrees of freedom: 0.1 % of uniform samples are above 85.4, 0.1 % below 23.98.
    assert 23.98 < chi_square < 85.4
