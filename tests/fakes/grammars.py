"""Grammars without a library: constraints that allow all tokens but one, and a backend with a gate."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.constraint import Grammar, TokenConstraint
from pagemesh.sampling.structured.outputs import StructuredOutputs

DEADLINE = 10.0


@dataclass
class FakeConstraint:
    """Keeps what it accepts; refuses one token, and is over after another."""

    refused: int = -1
    end: int = -1
    accepted: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.accepted[-1:] == [self.end]

    def allows(self, token_id: int) -> bool:
        return token_id != self.refused

    def accept(self, token_id: int) -> bool:
        if not self.allows(token_id):
            return False
        self.accepted.append(token_id)
        return True

    def fill_mask(self, mask: npt.NDArray[np.int32], avoid: Sequence[int] = ()) -> None:
        mask.fill(-1)


@dataclass
class FakeGrammar:
    """Starts constraints and remembers them."""

    started: list[FakeConstraint] = field(default_factory=list)

    def start(self) -> TokenConstraint:
        self.started.append(FakeConstraint())
        return self.started[-1]


class GatedBackend:
    """Compiles the text "bad" never, and all others when the gate is open."""

    def __init__(self) -> None:
        self.grammar = FakeGrammar()
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.compiled: list[StructuredOutputs] = []

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        self.compiled.append(outputs)
        self.entered.release()
        assert self.gate.wait(DEADLINE)
        if outputs.text == "bad":
            raise InvalidRequestError("it is bad", param="structured_outputs")
        return self.grammar
