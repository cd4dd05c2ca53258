"""Shorter embeddings of models that were trained for them, which put first what matters most.

Kusupati et al. 2022, "Matryoshka Representation Learning" (https://arxiv.org/abs/2205.13147).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.folder import read_json

_UNIT_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """Which lengths a model's vectors may be cut to."""

    is_trained: bool = False
    """Whether they may be cut at all."""

    lengths: tuple[int, ...] | None = None
    """The only ones; None for all."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """vLLM's keys of config.json: `is_matryoshka` and `matryoshka_dimensions`.

        ConfigError for values that they cannot have.
        """
        config = read_json(folder, "config.json")
        lengths = config.get("matryoshka_dimensions")
        if lengths is not None and not (
            isinstance(lengths, list) and lengths and all(type(n) is int and n > 0 for n in lengths)
        ):
            raise ConfigError(
                f"{folder / 'config.json'}: matryoshka_dimensions is {lengths!r}, but must be a list"
                " of positive integers"
            )
        is_trained = lengths is not None or config.get("is_matryoshka") is True
        return cls(is_trained, None if lengths is None else tuple(lengths))

    def check(self, wanted: int) -> None:
        """Raise InvalidRequestError unless vectors may be cut to so many numbers."""
        if not self.is_trained:
            raise InvalidRequestError(
                f"dimensions is {wanted}, but the model was not trained for shorter vectors than its own",
                param="dimensions",
            )
        if self.lengths is not None and wanted not in self.lengths:
            listed = ", ".join(map(str, self.lengths))
            raise InvalidRequestError(
                f"dimensions is {wanted}, but the model's may be {listed}", param="dimensions"
            )


def shorten(vector: Sequence[float], wanted: int) -> Sequence[float]:
    """The first numbers; a vector of length 1 has it again. InvalidRequestError if there are fewer."""
    if wanted > len(vector):
        raise InvalidRequestError(
            f"dimensions is {wanted}, but the model's vectors have {len(vector)}",
            param="dimensions",
        )
    first = vector[:wanted]
    norm = math.hypot(*first)
    if norm == 0 or abs(math.hypot(*vector) - 1) > _UNIT_TOLERANCE:
        return first
    return [value / norm for value in first]
