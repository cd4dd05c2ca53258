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


def write_layers(folder: Path, num_layers: int) -> None:
    """A model whose layers are all the same."""
    write_model_of(folder, **_LARGE, num_hidden_layers=num_layers)
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


@pytest.mark.parametrize(("way", "bits"), [("fp8", 8.5), ("int8", 8.125), ("int4", 5.0)])
def test_beside_packed_weights_memory_holds_at_most_a_layer(
    tmp_path: Path, way: WayName, bits: float
) -> None:
    if not re.search(r"^RssAnon:", Path("/proc/self/status").read_text(), re.MULTILINE):
        pytest.skip("the system does not tell memory of files and others apart")
    for name, num_layers in (("small", 1), ("large", _NUM_LAYERS)):
        (tmp_path / name).mkdir()
        write_layers(tmp_path / name, num_layers)
    command = [
        sys.executable,
        "-c",
        _WATCHED,
        str(tmp_path / "small"),
        str(tmp_path / "large"),
        way,
    ]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300, env=os.environ | _ALONE
    )
    held, most = map(int, done.stdout.splitlines()[-1].split())
    dense = _NUM_LAYERS * _LAYER_NUMBERS * 2
    packed = dense * bits / 16
    layer, allocator = 2 * _LAYER_NUMBERS, 2**22
    assert packed * 0.97 < held < packed * 1.03 + allocator
    assert held <= most < packed + layer + allocator < dense * 0.7
