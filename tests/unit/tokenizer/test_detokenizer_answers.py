"""One answer's tokens to text: what stop tokens, stop strings and the end do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, processors

from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.detokenizer import AnswerText, TextPiece
from pagemesh.tokenizer.thought_span import ThoughtMarks
from pagemesh.tokenizer.tokenizer import token_text
from tests.support.word_tokenizer import word_tokenizer

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


MARKS = ThoughtMarks("<think>", ("</think>", "<tool_call>"), None)
IN_THOUGHTS = MARKS._replace(thinking=True)
BEHIND = MARKS._replace(thinking=False)


@pytest.mark.parametrize(
    ("marks", "written", "shown", "stop"),
    [
        (MARKS, "<think>3 + 9: 12</think>It is + 9: so", "<think>3 + 9: 12</think>It is", " + 9: "),
        (MARKS, "\n<think>a + 9: </think>b", "\n<think>a + 9: </think>b", None),
        (IN_THOUGHTS, "3 + 9: 12</think>It is + 9: so", "3 + 9: 12</think>It is", " + 9: "),
        (IN_THOUGHTS, "<think>3 + 9: ", "<think>3 + 9: ", None),
        (IN_THOUGHTS, "\n</think>\n + 9: ", "\n</think>\n", " + 9: "),
        (IN_THOUGHTS, "a<tool_call> + 9: ", "a<tool_call>", " + 9: "),
        # An answer that does not begin with the mark has no thoughts.
        (MARKS, "3 + 9: 12<think>", "3", " + 9: "),
        (MARKS, "<th + 9: ", "<th", " + 9: "),
        (BEHIND, "<think>3 + 9: 12", "<think>3", " + 9: "),
        # What may still become a mark is sought through at the end.
        (MARKS, "<thi", "", "<th"),
        (MARKS, " <", " <", None),
        # No stop string is of thoughts and answer.
        (IN_THOUGHTS, "a + 9</think>: b", "a + 9</think>: b", None),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_stop_strings_are_sought_behind_the_thoughts_alone(
    tokenizer: Tokenizer,
    marks: ThoughtMarks,
    written: str,
    shown: str,
    stop: str | None,
    at_once: int,
) -> None:
    stops = [" + 9: ", "<th"] if stop == "<th" else [" + 9: "]
    text = AnswerText(tokenizer, stops, 0, thought_marks=marks)
    ids = await ids_of(tokenizer, written)
    pieces = []
    for first in range(0, len(ids), at_once):
        pieces.append(text.push(ids[first : first + at_once], ended=first + at_once >= len(ids)))
        if pieces[-1].stop_string:
            break
    assert ("".join(piece.text for piece in pieces), pieces[-1].stop_string) == (shown, stop)


async def test_the_mark_behind_thoughts_is_none_of_the_answer(tokenizer: Tokenizer) -> None:
    text = AnswerText(tokenizer, ["> "], 0, thought_marks=IN_THOUGHTS)
    piece = text.push(await ids_of(tokenizer, "a</think> b> c"))
    assert (piece.text, piece.stop_string) == ("a</think> b", "> ")


def places_of(tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[tuple[int, int]]:
    """As told one token at a time, and all at once."""
    one_by_one = AnswerText(tokenizer, (), 0, tells_places=True, **options)
    found = [place for id_ in ids for place in one_by_one.push([id_]).places]
    whole = AnswerText(tokenizer, (), 0, tells_places=True, **options).push(ids, ended=True)
    assert whole.places == tuple(found)
    return [(place.start, place.end) for place in found]


async def test_places_are_those_in_the_text(tokenizer: Tokenizer) -> None:
    emoji = await ids_of(tokenizer, "\U0001f680")
    assert len(emoji) > 1
    ids = [*await ids_of(tokenizer, "ab"), *emoji, IM_END, *await ids_of(tokenizer, " c")]
    num_first = len(await ids_of(tokenizer, "ab"))
    found = places_of(tokenizer, ids)
    assert [start for start, _ in found[:num_first]] == [*range(0, 2, 2 // num_first)]
    # Tokens of one character have its place, hidden ones have no text.
    assert found[num_first : num_first + len(emoji)] == [(2, 3)] * len(emoji)
    assert found[num_first + len(emoji)] == (3, 3)
    assert found[-1][1] == 5
    assert places_of(tokenizer, [emoji[0], IM_END, *emoji[1:]])[:2] == [(0, 1), (0, 0)]
    shown = places_of(tokenizer, [IM_END, *emoji], hidden_token_ids=frozenset())
    assert shown == [(0, 10), *[(10, 11)] * len(emoji)]


async def test_places_end_with_the_tokens_of_a_stop_string_or_the_stop_token(
    tokenizer: Tokenizer,
) -> None:
    ids = await ids_of(tokenizer, "one two three")
    piece = AnswerText(tokenizer, [" two"], 0, tells_places=True).push(ids)
    assert len(piece.places) == piece.num_tokens < len(ids)
    text = AnswerText(tokenizer, (), 0, tells_places=True)
    piece = text.push([*await ids_of(tokenizer, "one"), IM_END], ended=True, stop_token=True)
    assert piece.places[-1] == (3, 3)


def test_a_word_that_follows_a_prompt_keeps_its_blank(tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path)
    for prompt, expected in (([], "big world"), ([6], "big world"), ([6, 5], " big world")):
        text = AnswerText(words, (), 0, prompt_token_ids=prompt)
        assert text.push([4, 5], ended=True).text == expected
    # A prompt that ends within a character shows nothing.
    text = AnswerText(words, (), 0, prompt_token_ids=[5, 1])
    assert text.push([4], ended=True).text == "big"
    assert places_of(words, [5, 1, 2, 3, 6, 5], prompt_token_ids=[5]) == [
        (0, 6), (6, 7), (6, 7), (6, 7), (7, 7), (7, 13),
    ]  # fmt: skip


def test_tokens_have_the_bytes_that_they_add_to_a_text(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    words = word_tokenizer(tmp_path)
    found = [words.token_bytes(id_) for id_ in range(9)]
    assert found == [b" ", b"\xe2", b"\x82", b"\xac", b" big", b" world", b"<s>", b"s", b""]
    assert token_text(words, 1) == "\ufffd"
    first, *rest = tokenizer.encode_batch(["\U0001f680"], add_special_tokens=False)[0]
    parts = [tokenizer.token_bytes(id_) for id_ in (first, *rest)]
    assert b"".join(parts) == "\U0001f680".encode() and rest
    assert tokenizer.token_bytes(IM_END) == b"<|im_end|>"


async def test_places_of_a_prompt_are_those_in_the_text_as_it_was_given(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<s>": 2, "</s>": 3}, []))
    library.normalizer = normalizers.Lowercase()
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    found = await Tokenizer(tmp_path).encode_places("A</s>b", add_special_tokens=True)
    assert found == [0, 0, 1, 5, 6]
