"""Files that somebody spoiled are refused in a sentence, whatever reads them, and cost neither time nor memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.unit.gguf.small_file import (
    METADATA,
    PIECES,
    UNIGRAMS,
    WORDS,
    write_small,
    write_small_decoder,
    write_small_encoder,
    write_small_parts,
)
from tests.unit.models.hostile_reader import MIB, HostileReader

SECONDS = 60.0


FILES: Final[dict[str, Callable[[Path], Path]]] = {
    "byte-level BPE": write_small,
    "SentencePiece": partial(write_small, **PIECES),
    "WordPiece": partial(write_small_encoder, tokenizer=WORDS),
    "Unigram": partial(write_small_encoder, tokenizer=UNIGRAMS),
    "two parts": write_small_parts,
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileReader]:
    """It has read whole files."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not tell how much memory a process took meanwhile")
    folders = [tmp_path_factory.mktemp(f"whole{number}") for number in range(len(FILES))]
    reader = HostileReader(
        [
            write(folder / "model-00001-of-00002.gguf")
            for write, folder in zip(FILES.values(), folders, strict=True)
        ]
    )
    yield reader
    reader.close()


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Bytes changed, counts and lengths blown up, pieces moved or taken out."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        header = min(len(changed), 6000)
        at = draw.randrange(header)
        match draw.randrange(4):
            case 0:
                changed[at] = draw.randrange(256)
            case 1:
                value = draw.choice(
                    [0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, draw.getrandbits(24)]
                )
                changed[at : at + 8] = struct.pack("<Q", value)
            case 2:
                other, length = draw.randrange(header), draw.randrange(1, 40)
                changed[at : at + length] = changed[other : other + length]
            case _:
                del changed[at : at + draw.randrange(1, 40)]
    return bytes(changed)


@pytest.mark.parametrize(
    ("seed", "count"),
    [(11, 500), *(pytest.param(seed, 2000, marks=pytest.mark.exhaustive) for seed in range(3))],
)
@pytest.mark.parametrize("kind", FILES)
def test_hostile_files_are_refused_in_bounded_time_and_memory(
    tmp_path: Path, reader: HostileReader, kind: str, seed: int, count: int
) -> None:
    first = FILES[kind](tmp_path / "model-00001-of-00002.gguf")
    whole = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    draw = random.Random(seed)
    seconds, refused = 0.0, 0
    for number in range(count):
        path = draw.choice(list(whole))
        path.write_bytes(mutate(whole[path], draw))
        found = reader.read(first)
        where = f"mutation {number} of {path.name}"
        assert found.fault is None, where
        assert found.grown < 32 * MIB, where
        if found.refusal is not None:
            # Of a model in parts errors name the part, or the first; a context of 1 is too short to be read.
            assert found.refusal.startswith((str(tmp_path), "--max-model-len")), where
            refused += 1
        seconds += found.seconds
        path.write_bytes(whole[path])
    assert 0.3 * count < refused < count
    assert seconds < SECONDS * count / 500


class Blown(NamedTuple):
    """A file whose size says little of what could become of it."""

    write: Callable[[Path], Path]
    refusal: str | None
    """The end of the sentence; None where it is read."""

    most_mib: int = 16
    """That it may take."""


def small(**changes: Any) -> Callable[[Path], Path]:
    return partial(write_small, **changes)


def pieces(tokens: Sequence[str]) -> Callable[[Path], Path]:
    """A file with these behind the special tokens."""
    given = [*PIECES["tokenizer.ggml.tokens"][:3], *tokens]
    changes = {
        "tokenizer.ggml.tokens": given,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * len(tokens),
        "tokenizer.ggml.scores": [0.0] * len(given),
        "llama.vocab_size": len(given),
    }
    metadata = METADATA | PIECES | changes
    return partial(write_small_decoder, metadata=metadata, num_rows=len(given))


def with_long_token(tokenizer: dict[str, Any]) -> Callable[[Path], Path]:
    tokens = [*tokenizer["tokenizer.ggml.tokens"][:-1], "x" * 300_000]
    changes = {**tokenizer, "tokenizer.ggml.tokens": tokens}
    return partial(write_small_encoder, tokenizer=changes)


WINDOWS = {"llama.attention.sliding_window_pattern": bytes([1]) * 2**19}
LONG_TOKEN = "but 4096 are the most"
BLOWN: Final[dict[str, Blown]] = {
    "pieces that begin each other": Blown(
        pieces(["a" * length for length in range(1, 1500)]),
        "but it must be of at most 268435456 characters in all ways to cut them in two",
    ),
    "as many merges as there may be": Blown(
        pieces(["a" * length for length in range(1, 369)]), None, 192
    ),
    "a long piece": Blown(pieces(["x" * 300_000]), LONG_TOKEN),
    "a long unigram": Blown(with_long_token(UNIGRAMS), LONG_TOKEN),
    "a long word": Blown(with_long_token(WORDS), LONG_TOKEN),
    "more tokens than rows": Blown(
        small(**{"tokenizer.ggml.tokens": [str(n) for n in range(100_000)]}),
        "but it must be at most 12, the rows of token_embd.weight",
    ),
    "the same merge again and again": Blown(
        small(**{"tokenizer.ggml.merges": ["a b"] * 100_000}),
        "but it must be at most 27, the ways to cut its tokens in two",
    ),
    "a long template": Blown(
        small(**{"tokenizer.chat_template": "{{x}}" * 200_000}),
        "but it must be a string of at most 131072 characters",
    ),
    "windows of millions of layers": Blown(
        partial(write_small_decoder, metadata=METADATA | WINDOWS, architecture="gemma3"),
        "but it must be one for each layer, 1",
    ),
    "heads of millions of layers": Blown(
        small(**{"llama.attention.head_count_kv": list(range(2**19))}),
        "but it must be one number for all layers: nothing else is supported",
    ),
    "recommendations in an array": Blown(
        small(**{"general.sampling.temp": [0.5, 1.0]}),
        "but it must be a number",
    ),
}


@pytest.mark.parametrize("case", BLOWN)
def test_what_would_grow_is_refused_before_it_does(
    tmp_path: Path, reader: HostileReader, case: str
) -> None:
    blown = BLOWN[case]
    path = blown.write(tmp_path / "model.gguf")
    found = reader.read(path)
    assert found.fault is None
    assert found.grown < blown.most_mib * MIB
    assert found.seconds < 10.0
    if blown.refusal is None:
        assert found.refusal is None
    else:
        assert found.refusal is not None
        assert found.refusal.startswith(str(path)) and found.refusal.endswith(blown.refusal)
        assert len(found.refusal) < len(str(path)) + 300


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "unit", ["{{x}}", "{%set x=1%}", "{%for x in y%}{%endfor%}", "{{a,a,a,a}}"]
)
def test_the_longest_templates_take_bounded_memory(
    tmp_path: Path, reader: HostileReader, unit: str
) -> None:
    template = unit * (2**17 // len(unit))
    path = small(**{"tokenizer.chat_template": template})(tmp_path / "model.gguf")
    found = reader.read(path)
    assert (found.refusal, found.fault) == (None, None)
    assert found.grown < 640 * MIB
    assert found.seconds < SECONDS
