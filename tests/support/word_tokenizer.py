"""A tokenizer of the kind of Llama 2's: words begin with a mark, bytes stand for what is no word."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models

from pagemesh.tokenizer import Tokenizer

WORDS = ["▁", "<0xE2>", "<0x82>", "<0xAC>", "▁big", "▁world", "<s>", "s"]


def word_tokenizer(folder: Path) -> Tokenizer:
    """With these tokens, whose ids are their places."""
    library = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(WORDS)}, []))
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    library.add_special_tokens(["<s>"])
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)
