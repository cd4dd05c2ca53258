"""Prompts for engines over the demo model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer


def make_prompts(folder: Path) -> list[tuple[int, ...]]:
    """Prompts of 1 token to some hundred: questions, alone and as conversations that share prefixes."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    turns = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in questions
    ]
    texts = [
        *turns[:20],
        *("".join(turns[:count]) for count in range(2, 14)),
        *("".join(turns[20 : 20 + count]) for count in range(2, 10)),
    ]
    ids = [tuple(tokenizer.encode(text).ids) for text in texts]
    return [*ids, *(ids[0][:length] for length in (1, 2, 3, 16))]
