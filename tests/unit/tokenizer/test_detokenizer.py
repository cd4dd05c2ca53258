from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    make_detokenizer,
)

DEMO = Path(__file__).resolve().parents[3] / "models/demo"
TOKENIZER = Tokenizer(DEMO)
LIBRARY = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
IM_END = 2
EMOJI = "👩‍🚀".encode()

PRINTABLE_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]


def byte_id(byte: int) -> int:
    """The token of a single byte, whatever tokens the tokenizer itself would choose."""
    others = [other for other in range(256) if other not in PRINTABLE_BYTES]
    char = chr(byte) if byte in PRINTABLE_BYTES else chr(256 + others.index(byte))
    found = LIBRARY.token_to_id(char)
    assert found is not None
    return found


def byte_ids(data: bytes) -> list[int]:
    return [byte_id(byte) for byte in data]


Make = Callable[[Tokenizer], Detokenizer]


def make_window(tokenizer: Tokenizer) -> Detokenizer:
    return WindowDetokenizer(tokenizer, tokenizer.special_token_ids)


@pytest.fixture(scope="module", params=[make_window, make_detokenizer], ids=["window", "bytes"])
def make(request: pytest.FixtureRequest) -> Make:
    """Each kind of detokenizer; the second is made for tokenizers such as the demo model's."""
    kind: Make = request.param
    return kind


def deltas(
    make: Make, pieces: Iterable[Sequence[int]], tokenizer: Tokenizer = TOKENIZER
) -> list[str]:
    detokenizer = make(tokenizer)
    return [*[detokenizer.push(piece) for piece in pieces], detokenizer.flush()]


def one_by_one(ids: Sequence[int]) -> list[list[int]]:
    return [[token_id] for token_id in ids]


class CountingTokenizer(Tokenizer):
    """Counts how many ids were decoded."""

    num_decoded = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def test_a_character_comes_out_when_it_is_complete(make: Make) -> None:
    assert deltas(make, one_by_one(byte_ids("é€".encode()))) == ["", "é", "", "", "€", ""]


def test_several_tokens_at_once_give_all_that_is_complete(make: Make) -> None:
    ids = byte_ids("ab€".encode())
    first, second, rest = deltas(make, [ids[:4], ids[4:]])
    assert first in ("", "ab")
    assert (first + second, rest) == ("ab€", "")


def test_an_unfinished_character_is_shown_at_the_end(make: Make) -> None:
    assert deltas(make, one_by_one(byte_ids(b"a\xe2\x82"))) == ["a", "", "", "\ufffd"]


def test_special_tokens_have_no_text(make: Make) -> None:
    ids = [*byte_ids(b"a"), IM_END, *byte_ids(b"b"), 5000]
    assert deltas(make, one_by_one(ids)) == ["a", "", "b", "", ""]


def test_bytes_that_are_no_text_are_given_out_before_the_end(make: Make) -> None:
    pieces = deltas(make, one_by_one(byte_ids(b"\xff" * 20 + EMOJI)))
    assert "".join(pieces) == "\ufffd" * 20 + EMOJI.decode()
    assert "".join(pieces[:12]) != ""


@pytest.mark.parametrize("num_bad_bytes", range(5, 12))
def test_a_character_after_bytes_that_are_no_text_stays_whole(
    make: Make, num_bad_bytes: int
) -> None:
    pieces = deltas(make, one_by_one(byte_ids(b"\xff" * num_bad_bytes + "🚀€".encode())))
    assert "".join(pieces) == "\ufffd" * num_bad_bytes + "🚀€"


@given(st.lists(st.integers(0, 2047), max_size=60), st.data())
def test_any_split_of_any_tokens_gives_the_text_of_the_whole(
    make: Make, ids: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    whole = TOKENIZER.decode(ids)
    assert "".join(deltas(make, pieces)) == whole
    assert "".join(deltas(make, one_by_one(ids))) == whole


@given(st.binary(max_size=60))
def test_any_bytes_give_the_text_of_the_whole(make: Make, data: bytes) -> None:
    assert "".join(deltas(make, one_by_one(byte_ids(data)))) == data.decode(errors="replace")


@given(st.text(max_size=30))
def test_no_piece_of_a_text_ends_within_a_character(make: Make, text: str) -> None:
    pieces = deltas(make, one_by_one(byte_ids(text.encode())))
    assert [piece for piece in pieces if piece] == list(text.replace("\ufffd", "")) or (
        "\ufffd" in text
    )
    assert "".join(pieces) == text


@pytest.mark.parametrize("data", [b"plain text ", b"\xff", b"\xe2\x82", EMOJI])
def test_the_cost_is_linear(make: Make, data: bytes) -> None:
    tokenizer = CountingTokenizer(DEMO)
    ids = (byte_ids(data) * 400)[:400]
    deltas(make, one_by_one(ids), tokenizer)
    assert tokenizer.num_decoded < 60 * len(ids)


@pytest.mark.parametrize("text", ["Hello big world", "é → 東京", "a  b"])
def test_decoders_that_look_at_the_first_token_keep_their_spaces(
    make: Make, tmp_path: Path, text: str
) -> None:
    words = ["<0xE2>", "<0x82>", "<0xAC>", *"▁Helobigwrdé→東京a", "▁Hello", "▁big", "▁world"]
    library = tokenizers.Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True)
    )
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    ids = [words.index(part) for part in ("▁" + text.replace(" ", "▁"))]
    ids += [0, 1, 2, words.index("▁big"), words.index("▁world")]
    pieces = deltas(make, one_by_one(ids), tokenizer)
    assert "".join(pieces) == tokenizer.decode(ids) == f"{text}€ big world"


def test_bytes_are_enough_for_the_demo_model_alone(tmp_path: Path) -> None:
    assert isinstance(make_detokenizer(TOKENIZER), ByteDetokenizer)
    library = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    for decoder in (None, decoders.Metaspace(), decoders.Sequence([decoders.ByteFallback()])):
        if decoder is not None:
            library.decoder = decoder
        library.save(str(tmp_path / "tokenizer.json"))
        assert isinstance(make_detokenizer(Tokenizer(tmp_path)), WindowDetokenizer)
