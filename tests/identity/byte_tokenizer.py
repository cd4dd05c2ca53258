"""A tokenizer for the random models: one token for each character that one types, and some for several."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.identity.checkpoints import VOCAB_SIZE

MERGES: Final = (
    "1 2,12 3,0 0,a b,ab c,P a,r i,ri s,Pa ris,O s,l o,Os lo,t r,u e,tr ue,l l,n u,nu ll"
    ',{ "," }," :,( (,) )'
)
"""Pairs that become one token, behind each other."""


def write_tokenizer(folder: Path) -> int:
    """Write tokenizer.json; gives the id of the end of sequence, which is the vocabulary's last."""
    # ByteLevel writes a space as Ġ and the end of a line as Ċ.
    tokens = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ", "Ċ"]
    merges = [(left, right) for left, right in (pair.split() for pair in MERGES.split(","))]
    tokens += [left + right for left, right in merges]
    # Further ids, of texts that no output may have.
    tokens += ["~" * length for length in range(2, VOCAB_SIZE - len(tokens) + 1)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    end = tokenizer.token_to_id("<|end|>")
    assert end == VOCAB_SIZE - 1
    tokenizer.save(str(folder / "tokenizer.json"))
    return end
