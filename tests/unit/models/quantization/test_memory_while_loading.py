"""Loading a model that is quantised meanwhile takes the memory of what it becomes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.models.quantization.ways import WayName
from tests.unit.models.model_folder import write_model_of

_ALONE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Tensors get memory of their own, and give it back, as large ones always do."""

_NUM_LAYERS = 16
_LARGE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "dtype": "bfloat16",
}
_LAYER_NUMBERS = 4 * 768 * 768 + 3 * 768 * 2048
_ALLOCATOR = 2**22
"""Bytes that it may keep."""


def write_layers(folder: Path, num_layers: int, **sizes: Any) -> None:
    """A model whose layers are all the same."""
    write_model_of(folder, **_LARGE | sizes, num_hidden_layers=num_layers)
    first = "model.layers.0."
    layer: dict[str, torch.Tensor] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        which = layer if name.startswith(first) else others
        which[name.removeprefix(first)] = tensor.bfloat16()
    layers = {
        f"model.layers.{number}.{name}": tensor.clone()
        for number in range(num_layers)
        for name, tensor in layer.items()
    }
    save_file(others | layers, folder / "model.safetensors")


_WATCHED = """
import sys, threading
from pathlib import Path
from pagemesh.config import ModelConfig
from pagemesh.models.loader import load_model

def own_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024

small, large, way = sys.argv[1:]
# Code for its kernels is made meanwhile.
load_model(ModelConfig(small, threads=1, quantization=way))
before = most = own_bytes()
done = threading.Event()

def watch():
    global most
    while not done.wait(0.001):
        most = max(most, own_bytes())

thread = threading.Thread(target=watch)
thread.start()
model = load_model(ModelConfig(large, threads=1, quantization=way))
held = own_bytes()
done.set()
thread.join()
print(held - before, max(most, held) - before)
"""


def watch_loading(folder: Path, way: WayName, num_layers: int, **sizes: Any) -> tuple[int, int]:
    """Bytes that a model holds once it is loaded, and the most that were held meanwhile."""
    if not re.search(r"^RssAnon:", Path("/proc/self/status").read_text(), re.MULTILINE):
        pytest.skip("the system does not tell memory of files and others apart")
    small, large = folder / "small", folder / "large"
    for each, number, own in ((small, 1, {}), (large, num_layers, sizes)):
        each.mkdir()
        write_layers(each, number, **own)
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, str(small), str(large), way],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | _ALONE,
    )
    held, most = map(int, done.stdout.splitlines()[-1].split())
    return held, most


@pytest.mark.parametrize(("way", "bits"), [("fp8", 8.5), ("int8", 8.125), ("int4", 5.0)])
def test_beside_packed_weights_memory_holds_at_most_a_layer(
    tmp_path: Path, way: WayName, bits: float
) -> None:
    held, most = watch_loading(tmp_path, way, _NUM_LAYERS)
    dense = _NUM_LAYERS * _LAYER_NUMBERS * 2
    packed = dense * bits / 16
    assert packed * 0.97 < held < packed * 1.03 + _ALLOCATOR
    assert held <= most < packed + 2 * _LAYER_NUMBERS + _ALLOCATOR < dense * 0.7


@pytest.mark.parametrize("is_tied", [False, True])
def test_beside_a_head_memory_holds_its_codes_and_never_its_numbers(
    tmp_path: Path, is_tied: bool
) -> None:
    sizes = {"vocab_size": 32_000, "tie_word_embeddings": is_tied}
    held, most = watch_loading(tmp_path, "int4", 1, **sizes)
    head_codes = 32_000 * 768
    # Those of a table are kept, for lookups.
    codes = 0 if is_tied else 1.02 * head_codes
    assert most - held < codes + 2 * _LAYER_NUMBERS + _ALLOCATOR < 2 * head_codes
