"""Small tensors beside codes: what is wrong with them is found before the first weight is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.kernels.linear import Weight
from pagemesh.models import loader
from pagemesh.models.loader import load_model
from pagemesh.sizing.machine import process_memory, reset_peak
from tests.support.quantised_checkpoints import FORMATS, write
from tests.unit.models.quantization.test_quantised_formats import read_weights
from tests.unit.models.quantization.test_quantised_refusals import Q_PROJ, make

STATE = "weight.quant_state.bitsandbytes__nf4"


@contextmanager
def taking_little_memory(limit: int = 64 * 2**20) -> Iterator[None]:
    """Beside what the process has; in bytes."""
    begun = process_memory() if reset_peak() else None
    assert begun is not None, "nobody says"
    yield
    ended = process_memory()
    assert ended is not None and ended.peak - begun.resident < limit


def with_number(place: int, number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[place] = number
        return tensor

    return apply


def of_text(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda _: torch.tensor(list(text.encode()), dtype=torch.uint8)


def with_state(**changes: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        state = json.loads(bytes(tensor.tolist()))
        return of_text(json.dumps(state | changes))(tensor)

    return apply


def write_changed(
    folder: Path, name: str, end: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Path:
    """A checkpoint with one tensor changed."""
    made = make(folder, name)
    tensors = load_file(made / "model.safetensors")
    tensors[f"{Q_PROJ}.{end}"] = change(tensors[f"{Q_PROJ}.{end}"]).contiguous()
    write(made, tensors, json.loads((made / "config.json").read_text()))
    return made


@pytest.mark.parametrize(
    ("name", "end", "change", "told"),
    [
        (
            "GPTQ, act-order",
            "g_idx",
            lambda t: t + 1,
            "groups from 1 to 4, but must have them from 0 to 3",
        ),
        (
            "W4A16, asymmetric, act-order",
            "weight_g_idx",
            lambda t: t - 1,
            "groups from -1 to 2, but must have them from 0 to 3",
        ),
        (
            "W4A16",
            "weight_shape",
            lambda t: t + 1,
            "the shape [33, 33], but config.json asks for [32, 32]",
        ),
        (
            "LLM.int8()",
            "weight_format",
            lambda t: t + 2,
            "2, but must have 0, of rows one by one",
        ),
        (
            "W8A8, static",
            "input_scale",
            lambda t: t * 0,
            "0, but must have a positive number",
        ),
        (
            "FP8",
            "input_scale",
            lambda t: t * torch.nan,
            "nan, but must have a positive number",
        ),
        ("FP8", "weight_scale", lambda t: t * torch.inf, "values that are NaN or infinite"),
        (
            "NF4",
            "weight.quant_map",
            with_number(5, torch.nan),
            "values that are NaN or infinite",
        ),
        (
            "NF4",
            "weight.quant_map",
            with_number(0, torch.inf),
            "values that are NaN or infinite",
        ),
        (
            "NF4, nested",
            "weight.nested_quant_map",
            with_number(255, torch.nan),
            "values that are NaN or infinite",
        ),
        ("NF4", STATE, lambda t: t[:9], "no JSON object"),
        ("NF4", STATE, of_text("[" * 4096), "no JSON object"),
        ("NF4", STATE, of_text("[1]"), "no JSON object"),
        (
            "NF4",
            STATE,
            with_state(blocksize=16),
            "blocksize 16 and shape [32, 32], which are not those of {q}.weight: 8 and [32, 32]",
        ),
        (
            "NF4",
            STATE,
            with_state(shape=[16, 64]),
            "blocksize 8 and shape [16, 64], which are not those of {q}.weight: 8 and [32, 32]",
        ),
        (
            "NF4, nested",
            STATE,
            with_state(nested_blocksize=100),
            "nested_blocksize 100 and nested_offset 0.25, which do not fit nested_absmax of 1 for 128 runs",
        ),
        (
            "NF4, nested",
            STATE,
            with_state(nested_blocksize="256"),
            "nested_blocksize '256' and nested_offset 0.25, which do not fit nested_absmax of 1 for 128 runs",
        ),
        (
            "NF4, nested",
            STATE,
            with_state(nested_offset=torch.nan),
            "nested_blocksize 256 and nested_offset nan, which do not fit nested_absmax of 1 for 128 runs",
        ),
        (
            "NF4, nested",
            "weight.nested_absmax",
            lambda t: t[0],
            "shape [], but config.json asks for [1]",
        ),
    ],
)
def test_what_they_cannot_say_is_named_before_weights_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    end: str,
    change: Callable[[torch.Tensor], torch.Tensor],
    told: str,
) -> None:
    folder = write_changed(tmp_path, name, end, change)
    read: list[object] = []
    monkeypatch.setattr(loader, "assemble", lambda *arguments: read.append(arguments))
    with pytest.raises(ConfigError) as caught:
        load_model(ModelConfig(str(folder)))
    path = folder / "model.safetensors"
    assert caught.value.message == f"{path} has the tensor {Q_PROJ}.{end} with {told}".format(
        q=Q_PROJ
    )
    assert not read


def changed_state(folder: Path, **changes: Any) -> dict[str, Weight]:
    """The weights, when all states say something else."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(STATE):
            tensors[name] = with_state(**changes)(tensor)
    write(folder, tensors, json.loads((folder / "config.json").read_text()))
    return read_weights(folder, torch.float32)


@pytest.mark.parametrize("size", [2 * 10**8, 10**12, 10**30])
def test_a_run_of_scales_ends_with_them(tmp_path: Path, size: int) -> None:
    folder = make(tmp_path, "NF4, nested")
    own = read_weights(folder, torch.float32)
    with taking_little_memory():
        for name, weight in changed_state(folder, nested_blocksize=size).items():
            assert torch.equal(weight.dense(), own[name].dense()), name


@pytest.mark.parametrize("name", ["FP8 in blocks", "compressed FP8 in blocks"])
@pytest.mark.parametrize("block", [(2**26, 8), (2**40, 8), (64, 2**40), (2**80, 2**80)], ids=str)
def test_a_block_ends_with_its_matrix(tmp_path: Path, name: str, block: tuple[int, int]) -> None:
    folder = make(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    for each, tensor in tensors.items():
        if "weight_scale" in each:
            tensors[each] = tensor[:1] if block[1] == 8 else tensor[:1, :1]
    write(folder, tensors, {})

    def weights(*sizes: int) -> dict[str, Weight]:
        config = json.loads((tmp_path / "config.json").read_text())
        settings = copy.deepcopy(dict(FORMATS[name].config))
        if name == "FP8 in blocks":
            settings["weight_block_size"] = sizes
        else:
            settings["config_groups"]["group_0"]["weights"]["block_structure"] = sizes
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
        return read_weights(folder, torch.float32)

    own = weights(64, 8 if block[1] == 8 else 64)
    with taking_little_memory():
        for each, weight in weights(*block).items():
            assert torch.equal(weight.dense(), own[each].dense()), each
