"""Fields of requests whose answers are vectors, or are made of them."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError, PagemeshError, UnsupportedError
from pagemesh.router.openai.embeddings import EmbeddingRequest, parse_embedding_request
from pagemesh.router.openai.pooling import read_pooling
from pagemesh.router.openai.scoring import RerankRequest, ScoreRequest
from pagemesh.router.openai.truncation import Truncation

VALUES = (1.0, -2.5, 0.1, 1e-9)
VECTOR = struct.pack("<4f", *VALUES)


@pytest.mark.parametrize(
    ("fields", "packed"),
    [
        ({}, "<4f"),
        ({"embed_dtype": "float32", "endianness": "little"}, "<4f"),
        ({"endianness": "native"}, "=4f"),
        ({"endianness": "big"}, ">4f"),
        ({"embed_dtype": "float16"}, "<4e"),
        ({"embed_dtype": "float16", "endianness": "big"}, ">4e"),
    ],
    ids=lambda value: ",".join(value.values()) if isinstance(value, dict) else "",
)
def test_bytes_are_what_the_request_says(fields: dict[str, Any], packed: str) -> None:
    asked = parse_embedding_request({"input": "x", "encoding_format": "base64", **fields})
    assert base64.b64decode(asked.written(VECTOR)) == struct.pack(packed, *VALUES)  # type: ignore[arg-type]
    # Numbers are JSON's, whatever bytes would be.
    assert parse_embedding_request({"input": "x", **fields}).written(VECTOR) == struct.unpack(
        "<4f", VECTOR
    )


@pytest.mark.parametrize("endianness", ["little", "big"])
def test_bfloat16_is_rounded_to_the_nearest_of_two_to_the_even(endianness: Any) -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xC0207FFF]
    asked = {"encoding_format": "base64", "embed_dtype": "bfloat16", "endianness": endianness}
    written = parse_embedding_request({"input": "x", **asked}).written(struct.pack("<5I", *bits))
    expected = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC020]
    sign = "<" if endianness == "little" else ">"
    assert base64.b64decode(written) == struct.pack(f"{sign}5H", *expected)  # type: ignore[arg-type]


def test_numbers_beyond_float16_are_infinite() -> None:
    asked = {"input": "x", "encoding_format": "base64", "embed_dtype": "float16"}
    written = parse_embedding_request(asked).written(struct.pack("<f", 1e6))
    assert base64.b64decode(written) == struct.pack("<e", float("inf"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"embed_dtype": "fp8_e4m3"},
            InvalidRequestError,
            'embed_dtype is "fp8_e4m3": Input should',
        ),
        ({"endianness": "middle"}, InvalidRequestError, 'endianness is "middle": Input should be'),
        ({"encoding_format": "bytes"}, InvalidRequestError, 'encoding_format is "bytes": Input'),
        ({"use_activation": 2}, InvalidRequestError, "use_activation is 2: Input should be"),
        (
            {"normalize": False},
            UnsupportedError,
            r"normalize is not supported \(it is false\); use use_activation",
        ),
        ({"padding": "max_length"}, UnsupportedError, "padding is not supported"),
        ({"task": "token_embed"}, UnsupportedError, "task is not supported"),
        ({"truncate_prompt_tokens": -2}, InvalidRequestError, "truncate_prompt_tokens is -2"),
        ({"messages": []}, InvalidRequestError, "either input or messages, and not both"),
        ({"input": None}, InvalidRequestError, "input is missing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_by_name(
    fields: dict[str, Any], error: type[PagemeshError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        parse_embedding_request({"input": "x", **fields})
    assert raised.value.param == next(iter(fields))


def test_what_asks_for_nothing_is_taken() -> None:
    raw = {"input": "x", "padding": "do_not_pad", "normalize": None, "task": "embed", "user": "u"}
    assert parse_embedding_request(raw) == EmbeddingRequest(input="x")


@pytest.mark.parametrize(
    ("side", "special", "text"),
    [("right", [1, 10, 11, 2], [1, 10, 2]), ("left", [1, 12, 13, 2], [1, 13, 2])],
)
def test_special_tokens_stay_around_a_text_that_is_cut(
    side: str, special: list[int], text: list[int]
) -> None:
    whole, content = [1, 10, 11, 12, 13, 2], [10, 11, 12, 13]
    for num_tokens, kept in ((4, special), (3, text), (6, whole)):
        cut = Truncation.of_pooling(num_tokens, side, 512)
        assert cut is not None
        assert cut.cut_within(whole, content) == kept
    # Where there is room for special tokens alone, or a text is another one without them, tokens are cut.
    plain = Truncation(2, keeps_end=False, keeps_special=True)
    assert plain.cut_within(whole, content) == [1, 10]
    assert Truncation(4, keeps_end=False, keeps_special=True).cut_within(whole, [99]) == whole[:4]


def test_so_many_tokens_are_kept_of_an_input() -> None:
    assert Truncation.of_pooling(None, "left", 512) is None
    assert Truncation.of_pooling(-1, None, 512) == Truncation(512, False, True)
    for asked in (0, 513):
        with pytest.raises(InvalidRequestError, match=f"truncate_prompt_tokens is {asked}, but"):
            Truncation.of_pooling(asked, None, 512)


@pytest.mark.parametrize(
    "pair",
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")],
)
def test_texts_of_scores_have_several_names(pair: tuple[str, str]) -> None:
    first, second = pair
    assert read_pooling(ScoreRequest, {first: "a", second: ["b"]}).pair == pair
    with pytest.raises(InvalidRequestError, match=f"{second}.* missing"):
        _ = read_pooling(ScoreRequest, {first: "a"}).pair


def test_scores_need_texts() -> None:
    with pytest.raises(InvalidRequestError, match="there must be queries and documents, queries"):
        _ = read_pooling(ScoreRequest, {"text_2": "a"}).pair
    with pytest.raises(InvalidRequestError, match=r"data_1 is \{"):
        read_pooling(ScoreRequest, {"data_1": {"content": []}, "data_2": "a"})
    assert read_pooling(RerankRequest, {"query": "a", "documents": "b"}).documents == "b"
