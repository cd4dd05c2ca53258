"""Bytes of weights that stay packed, against those that lie in a processor's order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError
from pagemesh.kernels.linear import packed, packed_parts, panel_packing, weight
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import WAY_NAMES, QuantizationWay, Rounding, WayName
from pagemesh.models.registry import find_architecture
from pagemesh.sizing import plan
from pagemesh.sizing.check import check_before_loading
from pagemesh.sizing.weights import PackedWeights, packed_weights, panel_bytes, row_bytes
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.models.model_folder import write_model_of
from tests.unit.models.quantization.test_quantised_formats import read_weights

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def packed_of(folder: Path, asked: str | None = None, kind: Any = "cpu") -> PackedWeights:
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    return packed_weights(
        folder, settings, architecture, architecture.make_spec(settings), asked, kind
    )


@pytest.mark.parametrize(
    "to",
    [
        Rounding("fp8", 32),
        Rounding("int8", 128),
        Rounding("int8", 64),
        Rounding("int8", 16),
        Rounding("int8", 0),
        Rounding("int4", 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 256), (96, 384), (32, 192)], ids=str)
def test_panels_take_what_is_planned(to: Rounding, shape: tuple[int, int]) -> None:
    size = to.group_size or shape[1]
    if shape[1] % size and to.kind == "int8":
        size = 64
    to = Rounding(to.kind, size)
    rounded = round_weight(torch.randn(shape), to, torch.bfloat16)
    form = packed_parts.form_of(rounded, "pairs")
    assert form is not None
    assert placed_bytes(rounded, form) == panel_bytes(shape, to)
    assert rounded.num_bytes == row_bytes(shape, to)


def test_rows_fill_panels_and_inputs_steps() -> None:
    assert panel_bytes((3, 5, 40), Rounding("int8", 40)) == 3 * (32 * 64 + 64)
    assert panel_bytes((33, 128), Rounding("int4", 32)) == 2 * (32 * 64 + 2 * 256)


@pytest.mark.parametrize("way", WAY_NAMES)
def test_a_dense_checkpoint_is_planned_as_it_is_quantised(tmp_path: Path, way: WayName) -> None:
    folder = write_model_of(tmp_path, **SIZES)
    packed = packed_of(folder, way)
    assert packed.name == way
    qkv, head = (
        QuantizationWay(way).rounding("layers.0.qkv.weight", (768, 256)),
        packed.num_bytes["lm_head"],
    )
    assert qkv is not None
    assert packed.num_bytes["layers.0.qkv.weight"] == panel_bytes((768, 256), qkv)
    assert head == panel_bytes((11, 256), Rounding("int8", 128))
    assert "embed" not in packed.num_bytes
    assert len(packed.num_bytes) == 5
    on_gpu = packed_of(folder, way, "cuda").num_bytes
    assert on_gpu.keys() == packed.num_bytes.keys()
    assert on_gpu["layers.0.qkv.weight"] == row_bytes((768, 256), qkv)
    assert packed_of(folder) == PackedWeights()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_table_that_is_the_head_is_planned_as_one(tmp_path: Path, kind: Any) -> None:
    folder = write_model_of(tmp_path, **SIZES, tie_word_embeddings=True)
    of_one = panel_bytes if kind == "cpu" else row_bytes
    table = packed_of(folder, "int4", kind).num_bytes["embed"]
    assert table == of_one((11, 256), Rounding("int8", 128))


def own_bytes(folder: Path) -> Iterator[tuple[str, int]]:
    """Of each packed parameter, in the order of a processor."""
    for name, found in read_weights(folder, torch.bfloat16).items():
        parts = found.parts if isinstance(found, weight.RowStack) else (found,)
        sizes = [packed_size(part) for part in parts]
        if all(sizes):
            yield name, sum(filter(None, sizes))


def packed_size(matrix: weight.Plain) -> int | None:
    if isinstance(matrix, weight.Dense):
        return None
    if isinstance(matrix, packed.ChannelInt8):
        rows = torch.arange(-(-matrix.shape[0] // 32) * 32) % matrix.shape[0]
        return panel_packing.pack_int8(matrix, rows, "tiles").codes.nbytes
    form = packed_parts.form_of(matrix, "pairs")
    return None if form is None else placed_bytes(matrix, form)


def placed_bytes(matrix: packed.Packed, form: packed_parts.PackedForm) -> int:
    """Of a matrix whose rows fill panels."""
    columns = torch.arange(matrix.shape[0])
    return packed_parts.place_panels(packed_parts.FormedRows(matrix, form), columns).nbytes


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_quantised_checkpoint_is_planned_by_its_headers(tmp_path: Path, name: str) -> None:
    source = write_model_of(tmp_path, **SIZES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    folder = tmp_path / "quantised"
    planned = packed_of(folder)
    assert planned.name == FORMATS[name].config["quant_method"]
    on_gpu = packed_of(folder, kind="cuda").num_bytes
    for parameter, found in read_weights(folder, torch.bfloat16).items():
        if parameter in on_gpu:
            assert 0.65 * found.num_bytes < on_gpu[parameter] < 1.3 * found.num_bytes, parameter
    assert len(on_gpu) == 4
    if "act-order" in name:
        assert planned.num_bytes == {}
        return
    assert len(planned.num_bytes) == 4
    for parameter, size in own_bytes(folder):
        assert 0.7 * size < planned.num_bytes[parameter] < 1.3 * size, parameter


def test_without_weights_settings_say_how_many_bits(tmp_path: Path) -> None:
    source = write_model_of(tmp_path, **SIZES)
    numbers = 768 * 256
    for name, eighths in (("AWQ", 9), ("GPTQ of 8 bits, act-order", None), ("FP8", 17), ("W4A16", 9),
                          ("W8A16", 17), ("NF4", 9), ("LLM.int8()", 17), ("torchao int4", 9), ("GPTQ", 9)):  # fmt: skip
        folder = tmp_path / name
        quantise(source, folder, tmp_path / f"{name} dense", FORMATS[name])
        (folder / "model.safetensors").unlink()
        planned = packed_of(folder).num_bytes
        if eighths is None:
            assert planned == {}, name
            continue
        assert set(planned) == {f"layers.0.{part}.weight" for part in ("qkv", "o", "up", "down")}
        assert planned["layers.0.qkv.weight"] == numbers * eighths // 16, name


def test_devices_share_packed_weights(tmp_path: Path) -> None:
    folder = write_model_of(tmp_path, **SIZES)
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    packed = packed_of(folder, "int4").num_bytes
    whole, half = (plan.weight_bytes(spec, "bfloat16", size, packed) for size in (1, 2))
    kept = (11 * 256 + 3 * 256) * 2
    assert whole == kept + sum(packed.values())
    norms = 3 * 256 * 2
    assert half == norms + (whole - norms) // 2
    assert whole < 2 * plan.num_parameters(spec) * 0.4


def test_what_fits_packed_alone_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model_of(tmp_path, **SIZES)
    told: list[dict[str, int]] = []
    monkeypatch.setattr(
        "pagemesh.sizing.check.check_memory", lambda needs: told.append(dict(needs))
    )
    for way in (None, "int4"):
        model = ModelConfig(str(folder), dtype="bfloat16", quantization=way)
        check_before_loading(model, CacheConfig(), SchedulerConfig(8, 64))
    dense, packed = (needs["weights"] for needs in told)
    assert packed < 0.4 * dense


def test_another_format_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    source = write_model_of(tmp_path, **SIZES)
    quantise(source, tmp_path / "q", tmp_path / "dense", FORMATS["AWQ"])
    with pytest.raises(ConfigError, match=r"--quantization is int4, but .* quantised by awq"):
        packed_of(tmp_path / "q", "int4")
