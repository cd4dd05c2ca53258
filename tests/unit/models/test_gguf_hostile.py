"""Files that somebody spoiled are refused in a sentence, whatever reads them, and cost neither time nor memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.models.checkpoint import Checkpoint, find_sources
from pagemesh.models.choices import read_end_token_ids, read_pooling
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import load_generation_defaults
from tests.unit.gguf.small_file import UNIGRAMS, WORDS, write_small, write_small_encoder

NUM_MUTATIONS = 700
SECONDS, MIB = 60.0, 2**20

FILES: Final[dict[str, Callable[[Path], Path]]] = {
    "byte-level BPE": write_small,
    "WordPiece": partial(write_small_encoder, tokenizer=WORDS),
    "Unigram": partial(write_small_encoder, tokenizer=UNIGRAMS),
}


def read_all(path: Path) -> None:
    """As router and worker do."""
    settings = ConfigJson.read(path / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    read_end_token_ids(path, settings, spec.vocab_size)
    with Checkpoint.open(path, torch.float32) as checkpoint:
        sources, may_ignore = find_sources(checkpoint, architecture, spec)
        checkpoint.check({source.tensor: source.shape for source in sources}, may_ignore)
        for source in sources:
            checkpoint.read(source.tensor)
    read_pooling(path, causal=spec.causal)
    Tokenizer(path).encode_batch(["abc \0A é日🙂", "[CLS]<s>", ""], add_special_tokens=True)
    load_generation_defaults(path)


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Bytes changed, counts and lengths blown up, pieces moved or taken out."""
    changed = bytearray(content)
    header = min(len(changed), 6000)
    for _ in range(draw.randint(1, 4)):
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


@pytest.mark.parametrize("kind", FILES)
def test_hostile_files_are_refused_in_bounded_time_and_memory(tmp_path: Path, kind: str) -> None:
    content = FILES[kind](tmp_path / "whole.gguf").read_bytes()
    draw = random.Random(11)
    path = tmp_path / "model.gguf"
    begun, refused, read = time.process_time(), 0, 0
    tracemalloc.start()
    for _ in range(NUM_MUTATIONS):
        path.write_bytes(mutate(content, draw))
        try:
            read_all(path)
            read += 1
        except ConfigError as error:
            assert str(path) in error.message
            refused += 1
        path.unlink()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 0.3 * NUM_MUTATIONS and read > 0
    assert peak < 8 * MIB
    assert time.process_time() - begun < SECONDS
