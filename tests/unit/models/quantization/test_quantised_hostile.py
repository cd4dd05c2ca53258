"""Quantised checkpoints that somebody spoiled are refused in a sentence, or load, and cost neither time nor memory."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.kernels.linear import make_linear
from pagemesh.models.loader import load_model
from tests.support.quantised_checkpoints import FORMATS, write
from tests.unit.models.quantization.test_quantised_formats import read_weights
from tests.unit.models.quantization.test_quantised_refusals import make
from tests.unit.models.quantization.test_small_tensors import taking_little_memory

SECONDS: Final = 10.0
"""Of the processor for one checkpoint: of a form of weights that is new, code for its kernels is made."""

NESTED: Final[list[Any]] = []
for _ in range(200):
    NESTED[:] = [copy.copy(NESTED)]

VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, "", "x", "4", "re:(", "re:(.|a)*Z", "float", "int", "group", "block"),
    *(0, 1, -1, 2, 3, 4, 8, 16, 2**31, 2**63, 10**30, 10**400, 0.5, -1.0, 1e308),
    *(float("nan"), float("inf"), [], [1], [16, 8], [2**40, 2**80], [None], {}, {"a": 1}, NESTED),
)
"""What stands in the place of a setting."""


def mutate_settings(settings: Any, draw: random.Random) -> None:
    """Somewhere inside an object, in place: a value changed, taken out or put in."""
    keys = list(settings) if isinstance(settings, dict) else list(range(len(settings)))
    if not keys:
        return
    key = draw.choice(keys)
    inner = settings[key]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.8:
        mutate_settings(inner, draw)
        return
    match draw.randrange(8):
        case 0:
            del settings[key]
        case 1 if isinstance(settings, dict):
            settings[draw.choice(["x", "block_structure", "group_size", "actorder"])] = inner
        case 2 if isinstance(inner, int):
            settings[key] = inner * draw.choice([2, -1, 2**20])
        case _:
            settings[key] = copy.deepcopy(draw.choice(VALUES))


def mutated_state(tensor: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Of bytes that are JSON."""
    if draw.random() < 0.1:
        return torch.full((draw.choice([9, 4096]),), ord("["), dtype=torch.uint8)
    state = json.loads(bytes(tensor.tolist()))
    mutate_settings(state, draw)
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def mutated(tensor: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """With other numbers, or of another shape or type."""
    flat = tensor.flatten()
    match draw.randrange(6):
        case 0:
            return tensor.to(draw.choice([torch.float32, torch.float16, torch.int32, torch.uint8]))
        case 1:
            shapes = [tensor.t() if tensor.dim() == 2 else flat, flat[:0], flat[:1], flat[:-1]]
            return draw.choice([*shapes, tensor.unsqueeze(0), flat[0], torch.cat([flat, flat])])
        case 2:
            whole = flat.contiguous().view(torch.uint8).clone()
            whole[draw.randrange(len(whole))] = draw.randrange(256)
            return whole.view(tensor.dtype).view(tensor.shape)
        case 3 if tensor.is_floating_point():
            value = draw.choice([float("nan"), float("inf"), -1.0, 0.0, 1e-45, 1e38, 3e38])
            return torch.full_like(tensor.float(), value).to(tensor.dtype)
        case 3:
            info = torch.iinfo(tensor.dtype)
            return torch.full_like(tensor, draw.choice([info.min, info.max, 0, 1]))
        case 4:
            changed = tensor.clone().float()
            changed.view(-1)[draw.randrange(max(1, changed.numel()))] = draw.choice([-1.0, 2.0**31])
            return changed.to(tensor.dtype)
        case _:
            raw = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8)
            return raw.view(tensor.dtype).view(tensor.shape) if tensor.dim() else tensor


def spoil(
    tensors: dict[str, torch.Tensor], config: dict[str, Any], key: str, draw: random.Random
) -> None:
    """One to three things of a checkpoint, in place."""
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.4:
            mutate_settings(config[key], draw)
            continue
        name = draw.choice([name for name in tensors if "_proj." in name])
        if draw.random() < 0.15:
            del tensors[name]
        elif "quant_state" in name and draw.random() < 0.8:
            tensors[name] = mutated_state(tensors[name], draw)
        else:
            tensors[name] = mutated(tensors[name], draw).contiguous()


def spoil_header(path: Path, draw: random.Random) -> None:
    """Bytes of a file's header: digits become others, commas and brackets move."""
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(end)
        content[at] = draw.choice(b"0123456789-,.[]{}eF") if at >= 8 else draw.randrange(256)
    path.write_bytes(content)


def load(folder: Path) -> None:
    """As a worker does; what loads stands for numbers alone, and is multiplied as such: with zeros it gives zeros."""
    dtype = load_model(ModelConfig(str(folder))).dtype
    for name, weight in read_weights(folder, dtype).items():
        rows = torch.zeros(2, weight.shape[-1], dtype=dtype)
        assert not make_linear(weight)(rows).any(), name


@pytest.mark.parametrize(
    "number", [10, pytest.param(1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("name", FORMATS)
def test_spoiled_checkpoints_are_refused_or_load(tmp_path: Path, name: str, number: int) -> None:
    folder = make(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    load(folder)
    draw = random.Random(f"{name} {number}")
    torch.manual_seed(number)
    refused = 0
    with taking_little_memory(256 * 2**20):
        for _ in range(number):
            changed, settings = dict(tensors), copy.deepcopy(config)
            try:
                spoil(changed, settings, FORMATS[name].key, draw)
            except (IndexError, ValueError, RuntimeError):
                # What was spoiled twice may not be spoiled further.
                continue
            write(folder, changed, settings)
            if draw.random() < 0.2:
                spoil_header(folder / "model.safetensors", draw)
            begun = time.process_time()
            try:
                load(folder)
            except ConfigError as error:
                assert str(folder) in error.message
                refused += 1
            assert time.process_time() - begun < SECONDS
    assert refused >= number / 6
