"""One answer's tokens to text: what stop tokens, stop strings and the end do to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.answer_text import AnswerText, TextPiece

IM_END = 2


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


async def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return await tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("stop", [[], ["never"]], ids=["without stop strings", "with one"])
async def test_a_stop_token_is_counted_but_has_no_text(
    tokenizer: Tokenizer, stop: list[str]
) -> None:
    ids = await ids_of(tokenizer, "ab")
    text = AnswerText(tokenizer, stop, 0)
    assert text.push(ids) == TextPiece("ab", len(ids))
    assert text.push([ids[-1]], ended=True, stop_token=True) == TextPiece("", 1)
    assert text.num_tokens == len(ids) + 1


@pytest.mark.parametrize("stop", [[], ["never"]], ids=["without stop strings", "with one"])
async def test_an_unfinished_character_is_shown_at_the_end(
    tokenizer: Tokenizer, stop: list[str]
) -> None:
    half = (await ids_of(tokenizer, "ab\U0001f680"))[:-1]
    text = AnswerText(tokenizer, stop, 0)
    assert "".join(text.push([token_id]).text for token_id in half) == "ab"
    assert text.push([], ended=True) == TextPiece("\ufffd", 0)
    assert text.num_tokens == len(half)


async def test_the_tokens_behind_a_stop_string_are_not_counted(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one two three")
    text = AnswerText(tokenizer, [" two", "zzz"], 0)
    piece = text.push(ids)
    assert (piece.text, piece.stop_string) == ("one", " two")
    assert tokenizer.decode(ids[: piece.num_tokens]) == "one two"
    assert text.num_tokens == piece.num_tokens < len(ids)


async def test_stop_strings_are_not_sought_in_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    ids = await ids_of(tokenizer, "one two one two")
    first = await ids_of(tokenizer, "one two")
    assert AnswerText(tokenizer, [" two"], len(first)).push(ids).text == "one two one"


async def test_text_held_back_for_a_stop_string_comes_with_the_end(tokenizer: Tokenizer) -> None:
    text = AnswerText(tokenizer, [" two"], 0)
    assert text.push(await ids_of(tokenizer, "one tw")).text == "one"
    assert text.push([IM_END], ended=True, stop_token=True).text == " tw"
