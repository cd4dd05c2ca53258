"""What the engine does with grammars: which texts they allow, with a tokenizer's tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer

from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.constraint import Grammar, TokenConstraint
from pagemesh.sampling.structured.guidance import GuidanceBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs

EOS = (2, 0)


@dataclass(frozen=True)
class Model:
    """A tokenizer of which some markers are tokens, and a compiler for its grammars."""

    tokenizer: Tokenizer
    compiler: GrammarCompiler

    def token_id(self, text: str) -> int | None:
        added = self.tokenizer.get_added_tokens_decoder()
        return next((id_ for id_, token in added.items() if token.content == text), None)

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        return self.compiler.compile(outputs).result(20)

    def allows(self, grammar: Grammar, text: str, *, whole: bool = True) -> bool:
        """Whether a text, or its beginning, can be generated, and whether it can end there."""
        constraint = grammar.start()
        return self.walk(constraint, text) and (not whole or set(EOS) <= set(self.next(constraint)))

    def walk(self, constraint: TokenConstraint, text: str) -> bool:
        for token_id in self.tokenizer.encode(text, add_special_tokens=False).ids:
            if token_id not in self.next(constraint) or not constraint.accept(token_id):
                return False
        return True

    def next(self, constraint: TokenConstraint) -> list[int]:
        mask = np.zeros(-(-self.tokenizer.get_vocab_size() // 32), dtype=np.int32)
        constraint.fill_mask(mask)
        ids: list[int] = np.flatnonzero(
            np.unpackbits(mask.view(np.uint8), bitorder="little")
        ).tolist()
        return ids

    def random_text(self, grammar: Grammar, begin: str, dice: random.Random) -> str:
        """Any text that the grammar allows; ends where it can, with one chance in two."""
        constraint = grammar.start()
        assert self.walk(constraint, begin)
        ids: list[int] = []
        while True:
            allowed = self.next(constraint)
            if EOS[0] in allowed and (dice.random() < 0.5 or set(allowed) <= set(EOS)):
                return begin + self.tokenizer.decode(ids, skip_special_tokens=False)
            token_id = dice.choice([id_ for id_ in allowed if id_ not in EOS])
            assert constraint.accept(token_id)
            ids.append(token_id)


def new_model(
    demo_model: Path, folder: Path, special: Iterable[str], other: Iterable[str]
) -> Model:
    """The demo model's tokenizer with more tokens."""
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in other])
    tokenizer.add_special_tokens([AddedToken(text) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    return Model(tokenizer, GrammarCompiler(lambda: GuidanceBackend(folder, size, EOS)))
