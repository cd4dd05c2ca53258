"""A tokenizer of a usual size for a router to load, trained once on this machine on the project's own text.

Byte-level BPE with 32,000 ids, as large models have them: the demo model's 2,048 make twice the tokens of a text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tokenizers
from report import ROOT
from tokenizers import decoders, models, pre_tokenizers, trainers

VOCAB_SIZE: Final = 32_000
_KINDS: Final = ("*.md", "*.py", "*.proto", "*.toml", "*.json")
_MOST_BYTES: Final = 1 << 20
"""Of a file; larger ones are data."""


def project_texts() -> Iterator[str]:
    """Every page and source of the project."""
    for kind in _KINDS:
        for path in sorted(ROOT.rglob(kind)):
            hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts)
            if not hidden and path.stat().st_size < _MOST_BYTES:
                yield path.read_text("utf-8", errors="replace")


def make_tokenizer_folder() -> Path:
    """A model's folder as far as a router needs it, made when it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"pagemesh/benchmarks/tokenizer-{VOCAB_SIZE}"
    if not (folder / "tokenizer.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        config = {"model_type": "llama", "vocab_size": VOCAB_SIZE}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        draft = folder / f"tokenizer.{os.getpid()}"
        _train().save(str(draft))
        draft.rename(folder / "tokenizer.json")
    return folder


def _train() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(project_texts(), trainer)
    return tokenizer
