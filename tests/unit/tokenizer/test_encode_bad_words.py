from __future__ import annotations

from pathlib import Path

from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.tokenizer import encode_bad_words


def test_a_word_is_found_at_the_beginning_and_behind_a_space(demo_model: Path) -> None:
    tokenizer = Tokenizer(demo_model)
    found = encode_bad_words(["Paris", " Paris", "New York"], tokenizer)
    assert [tokenizer.decode(ids) for ids in found] == ["Paris", " Paris", "New York", " New York"]


def test_no_words_need_no_tokens(demo_model: Path) -> None:
    assert encode_bad_words([], Tokenizer(demo_model)) == ()
