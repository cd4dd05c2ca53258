"""What loading a model took beside its weights is the system's again: pages of its file, and what was freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.identity.checkpoints import RECIPES, VOCAB_SIZE, make_checkpoint
from tests.support.gguf_files import write_gguf
from tests.unit.models.model_folder import write_model_of

LOAD = """
import ctypes, os, sys
from pathlib import Path
from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.loading.engine import load_engine

def own_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

def bytes_of(file):
    sizes, is_it = [0], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_it = line.endswith(file)
        elif is_it and line.startswith("Rss:"):
            sizes.append(int(line.split()[1]) * 1024)
    return sum(sizes)

model, way = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
trim = ctypes.CDLL(None).malloc_trim
cache = CacheConfig(kv_cache_memory=0.5)
engine = load_engine(ModelConfig(model, threads=1, quantization=way), cache, SchedulerConfig())
of_file, held = bytes_of(model), own_bytes()
trim(0)
print(of_file, held - own_bytes())
engine.stop()
"""
TOKENIZER = {
    "model": "llama",
    "tokens": [f"t{number}" for number in range(VOCAB_SIZE)],
    "scores": [0.0] * VOCAB_SIZE,
    "token_type": [1] * VOCAB_SIZE,
}

LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 1,
}


def loaded(*arguments: str) -> list[int]:
    """Bytes that are mapped of the file, and that malloc could still give back; of a process that loaded a model."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux says whose pages they are")
    command = [sys.executable, "-c", LOAD, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return [int(each) for each in done.stdout.split()[-2:]]


def test_pages_of_a_file_are_not_kept(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, RECIPES["Llama GQA"])
    keys: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in TOKENIZER.items()}
    file = write_gguf(tmp_path, tmp_path / "model.gguf", **keys)
    of_file, _ = loaded(str(file))
    # Its metadata may have been read again.
    assert of_file < 2**16 < file.stat().st_size


def test_what_weights_were_packed_from_is_given_back(tmp_path: Path) -> None:
    write_model_of(tmp_path, **LARGE)
    _, still_free = loaded(str(tmp_path), "int8")
    assert still_free < 6 * 2**20
