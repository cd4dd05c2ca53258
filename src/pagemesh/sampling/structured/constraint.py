"""The contract between whoever schedules, whoever samples and whoever knows grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import PARAM, StructuredOutputs


class TokenConstraint(Protocol):
    """Which tokens a request may generate next. Belongs to one request; one thread at a time.

    What it allows follows from its grammar and the tokens accepted so far alone, so that another one
    that accepted the same tokens stands for it after a resumption or on another worker.
    """

    @property
    def is_over(self) -> bool:
        """Whether an end of sequence was accepted."""
        ...

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next; nothing changes."""
        ...

    def accept(self, token_id: int) -> bool:
        """Move on past a token; False when it may not come here, and then this is of no use any more.

        Raises InvalidRequestError when following it takes too much.
        """
        ...

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        """Set bit i % 32 of word i // 32 for every token i that may come next, clear all others.

        `mask` has a bit for every id of the model's vocabulary: int32 [ceil(vocab / 32)]. Ends of
        sequence are allowed where the output is complete, tokens to avoid only where nothing else is.
        Raises InvalidRequestError when no token may come, or when finding out takes too much. May be asked
        when it is over or has refused a token, too: for a row that was launched before that was known, and
        of which nothing is used.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar; any thread."""

    def start(self) -> TokenConstraint:
        """A constraint that has accepted nothing yet."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars for one model's vocabulary; one thread at a time."""

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """Compile; InvalidRequestError naming what is wrong. May take long and need a deep stack."""
        ...


def start_after(grammar: Grammar, token_ids: Sequence[int]) -> TokenConstraint:
    """A constraint that has accepted what was generated elsewhere; InvalidRequestError if it cannot."""
    constraint = grammar.start()
    for index, token_id in enumerate(token_ids):
        if not constraint.accept(token_id):
            raise InvalidRequestError(
                f"resume_token_ids[{index}] is {token_id}, which the structured output does not allow",
                param=PARAM,
            )
    return constraint
