"""Weights through pinned buffers: the same numbers as on the host, and the same refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.loading.cuda_weights import DeviceWeightWriter
from pagemesh.models.architectures.architecture import Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import HOST, CheckpointParameters, ModelTarget, WeightWriter
from pagemesh.models.quantization.methods import read_quantization
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.registry import find_architecture
from tests.support.host_accelerator import HostAccelerator
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.models.model_folder import write_model_of

SIZES = {"hidden_size": 32, "intermediate_size": 48}
NUMBERS = torch.arange(1, 7001, dtype=torch.float32).view(70, 100)
SHAPES = {"table": (140, 100), "norm.weight": (100,), "turned": (100, 70)}
SOURCES = [
    Source("low", (70, 100), "table", (slice(0, 70),)),
    Source("high", (70, 100), "table", (slice(70, 140),)),
    Source("norm", (100,), "norm.weight", convert=lambda weight: weight.float() + 1.0),
    Source("low", (70, 100), "turned", convert=lambda weight: weight.T),
]


def write(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    known = {"low": NUMBERS, "high": -NUMBERS, "norm": NUMBERS[0].clone()}
    save_file({**known, **tensors}, folder / "model.safetensors")
    return Checkpoint.open(folder)


def read(
    checkpoint: Checkpoint, dtype: torch.dtype, writer: WeightWriter
) -> dict[str, torch.Tensor]:
    with checkpoint, writer.computing():
        parameters = CheckpointParameters(checkpoint, SOURCES, SHAPES, dtype, writer)
        tensors = {name: parameters.read(name) for name in SHAPES}
        parameters.check()
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("buffer_bytes", [64, 1000, 1 << 20])
def test_parameters_are_those_of_the_host(
    tmp_path: Path, dtype: torch.dtype, buffer_bytes: int
) -> None:
    checkpoint = write(tmp_path, low=NUMBERS.to(torch.bfloat16))
    accelerator = HostAccelerator()
    found = read(checkpoint, dtype, DeviceWeightWriter(accelerator, buffer_bytes))
    expected = read(Checkpoint.open(tmp_path), dtype, HOST)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype == (torch.float32 if "norm" in name else dtype)
        assert torch.equal(found[name], tensor)
    # Two buffers, however much goes through them.
    assert [len(memory) for memory in accelerator._pinned] == [buffer_bytes] * 2


def test_the_host_waits_only_for_buffers_in_use(tmp_path: Path) -> None:
    accelerator = HostAccelerator()
    writer = DeviceWeightWriter(accelerator, 1 << 20)
    read(write(tmp_path), torch.float32, writer)
    copies = writer._copies
    assert isinstance(copies, HostAccelerator)
    # Four tensors of one piece each: the third one waits for the first one's buffer.
    assert (copies.num_copies, copies.num_waits, accelerator.num_waits) == (4, 2, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    tensor = NUMBERS.clone()
    tensor[69, 99] = bad
    with pytest.raises(ConfigError) as refusal:
        read(write(tmp_path, high=tensor), torch.float32, DeviceWeightWriter(HostAccelerator()))
    assert refusal.value.message == (
        f"{tmp_path / 'model.safetensors'} has the tensor high with values that are NaN or infinite"
    )


def test_values_that_the_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, high=NUMBERS * 100)
    with pytest.raises(ConfigError, match="high with values that float16 cannot hold: choose"):
        read(checkpoint, torch.float16, DeviceWeightWriter(HostAccelerator()))


def test_finite_values_whose_sum_is_infinite_are_taken(tmp_path: Path) -> None:
    high = torch.full((70, 100), 3e38)
    found = read(write(tmp_path, high=high), torch.float32, DeviceWeightWriter(HostAccelerator()))
    assert torch.equal(found["table"][70:], high)


def test_a_model_filled_on_a_device_is_the_one_on_the_host(demo_model: Path) -> None:
    config = ModelConfig(str(demo_model), max_model_len=64)
    on_host, on_device = (
        load_model(config),
        load_model(config, ModelTarget(DeviceWeightWriter(HostAccelerator()), "auto")),
    )
    assert on_device.fingerprint == on_host.fingerprint
    config_json = json.loads((demo_model / "config.json").read_text())
    hidden = torch.randn(3, config_json["hidden_size"], generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(on_device.decoder.logits(hidden), on_host.decoder.logits(hidden))


@pytest.mark.parametrize("name", ["AWQ", "FP8", "GPTQ, act-order", "NF4, nested"])
def test_quantised_weights_are_those_of_the_host(tmp_path: Path, name: str) -> None:
    quantise(write_model_of(tmp_path, **SIZES), tmp_path / "q", tmp_path / "dense", FORMATS[name])
    config = ModelConfig(str(tmp_path / "q"), dtype="bfloat16")
    accelerator = HostAccelerator()
    target = ModelTarget(DeviceWeightWriter(accelerator, 100), "auto")
    brought = load_model(config, target)
    assert brought.fingerprint == load_model(config).fingerprint
    settings = ConfigJson.read(tmp_path / "q" / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    with Checkpoint.open(tmp_path / "q") as checkpoint:
        sources = architecture.named_sources(spec, checkpoint.entries.keys())
        packings = Packings(read_quantization(settings), sources, checkpoint.entries)
        both = [
            CheckpointParameters(
                checkpoint, sources, spec.parameter_shapes(), torch.bfloat16, writer, packings
            )
            for writer in (DeviceWeightWriter(HostAccelerator(), 100), HOST)
        ]
        for parameter in ("layers.0.qkv.weight", "layers.0.down.weight"):
            found, expected = (parameters.weight(parameter) for parameters in both)
            assert torch.equal(found.dense(), expected.dense())
        both[0].check()


def test_quantised_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    quantise(write_model_of(tmp_path, **SIZES), tmp_path / "q", tmp_path / "dense", FORMATS["AWQ"])
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.scales"][1, 2] = torch.inf
    save_file(tensors, tmp_path / "q" / "model.safetensors")
    target = ModelTarget(DeviceWeightWriter(HostAccelerator()), "auto")
    with pytest.raises(ConfigError, match=r"up_proj\.qweight with values that are NaN or infinite"):
        load_model(ModelConfig(str(tmp_path / "q")), target)
