"""What others' code makes of the same tensors, and of what it writes itself: the same numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pagemesh.kernels.linear import make_linear
from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.weight import Weight
from pagemesh.models.architectures.architecture import Source
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.quantization.methods import Quantization
from pagemesh.models.quantization.parts import Packings
from tests.support.late_imports import (
    awq_converters,
    compressed_quantization,
    compressors,
    finegrained_fp8,
    mxfp4,
)
from tests.support.quantised_checkpoints import FORMATS, write
from tests.support.quantising import BLOCK, awq, blocks_of, fp8

SHAPE = (40, 32)
FILES = Path(__file__).with_name("files")


def read(
    folder: Path,
    config: dict[str, Any],
    tensors: Mapping[str, torch.Tensor],
    source: Source,
) -> Weight:
    """Of the tensors of one module, by the rest of their names."""
    module = source.tensor.removesuffix(".weight")
    write(folder, {f"{module}{name}": tensor for name, tensor in tensors.items()}, {})
    quantization = Quantization(config["quant_method"], ConfigJson(config, "config.json"))
    with Checkpoint.open(folder) as checkpoint:
        packings = Packings(quantization, [source], checkpoint.entries)
        packings.check(checkpoint, [source], lambda _: False)
        parameters = CheckpointParameters(
            checkpoint,
            [source],
            {source.parameter: source.shape},
            torch.bfloat16,
            packings=packings,
        )
        return parameters.weight(source.parameter)


def matrix(shape: tuple[int, ...]) -> Source:
    return Source("m.weight", shape, "m.weight")


CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "4 bits": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 8}, (40, 4)),
    "4 bits, asymmetric": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
        (40, 2),
    ),
    "4 bits, rows": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "channel", "symmetric": False},
        (40, 1),
    ),
    "8 bits": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}, (40, 1)),
    "int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}, (40, 1)),
    "int8, asymmetric": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
        (40, 1),
    ),
    "int8, whole": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}, (1,)),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, (40, 1)),
    "fp8, whole": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, (1,)),
    "fp8, blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]},
        (3, 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_compressed_tensors_are_decompressed_alike(tmp_path: Path, case: str) -> None:
    layout, arguments, scales = CASES[case]
    torch.manual_seed(2)
    weights = compressed_quantization.QuantizationArgs(**arguments)
    scheme = compressed_quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    half = 1 << (weights.num_bits - 1)
    given = {
        "weight": torch.randn(SHAPE).bfloat16(),
        "weight_scale": ((torch.rand(scales) + 0.5) / 100).bfloat16(),
    }
    if not weights.symmetric:
        given["weight_zero_point"] = torch.randint(-half, half, scales).to(torch.int8)
    compressor: Any = compressors.BaseCompressor.get_value_from_registry(layout)
    written = compressor.compress(given, scheme)
    expected = compressor.decompress(written, scheme)["weight"]
    group = scheme.model_dump(mode="json")
    config = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
    }
    weight = read(
        tmp_path, config, {f".{name}": tensor for name, tensor in written.items()}, matrix(SHAPE)
    )
    assert isinstance(weight, GroupInt | ScaledFp8)
    assert expected.dtype == torch.bfloat16
    assert torch.equal(weight.dense(), expected)


def test_awq_is_converted_alike(tmp_path: Path) -> None:
    """By compressed-tensors, which then decompresses it, in the type of the scales."""
    torch.manual_seed(2)
    config = FORMATS["AWQ"].config
    tensors = dict(awq(*SHAPE).tensors)
    tensors["scales"] = tensors["scales"].float()
    converter: Any = awq_converters.AutoAWQConverter
    converter = converter.from_autoawq_config(config)
    converted = converter.process({f"m.{name}": each for name, each in tensors.items()})
    written = {name.removeprefix("m."): tensor for name, tensor in converted.items()}
    (scheme,) = converter.update_config(None).config_groups.values()
    compressor: Any = compressors.BaseCompressor.get_value_from_registry("pack-quantized")
    expected = compressor.decompress(written, scheme)["weight"]
    own = {f".{name}": tensor for name, tensor in tensors.items()}
    weight = read(tmp_path, dict(config), own, matrix(SHAPE))
    assert isinstance(weight, GroupInt)
    assert expected.dtype == torch.float32
    assert torch.equal(weight.dense(), expected.bfloat16())


@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_whole_numbers_are_multiplied_as_compressed_tensors_says(
    tmp_path: Path, strategy: str, is_static: bool
) -> None:
    """With scales that are powers of two all of its arithmetic is exact; dynamic ones it divides by 127.5."""
    torch.manual_seed(2)
    make_args: Any = compressed_quantization.QuantizationArgs
    given: dict[str, Any] = {"dynamic": not is_static, "strategy": "token"}
    if is_static:
        given["strategy"] = "tensor"
    scheme = compressed_quantization.QuantizationScheme(
        targets=["Linear"],
        weights=make_args(num_bits=8, strategy=strategy),
        input_activations=make_args(num_bits=8, **given),
    )
    module = {
        "weight": torch.randn(SHAPE).bfloat16(),
        "weight_scale": torch.full((40, 1) if strategy == "channel" else (1,), 2.0**-6),
    }
    compressor: Any = compressors.BaseCompressor.get_value_from_registry("int-quantized")
    written = compressor.compress(module, scheme)
    if is_static:
        written["input_scale"] = torch.tensor([2.0**-5])
    config = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
    }
    tensors = {f".{name}": tensor for name, tensor in written.items()}
    weight = read(tmp_path, config, tensors, matrix(SHAPE))
    assert isinstance(weight, ChannelInt8)
    dense = compressor.decompress(written, scheme)["weight"]
    assert torch.equal(weight.dense(), dense.bfloat16())
    # Of a row whose largest number is 127 · 2^-5 both scales are 2^-5.
    rows = torch.randn(9, 32).clamp(-3, 3).bfloat16()
    rows[:, 4] = 127 * 2.0**-5
    scale, zero = torch.tensor([2.0**-5]), torch.tensor([0], dtype=torch.int8)
    static = make_args(num_bits=8, strategy="tensor")
    rounded = compressed_quantization.fake_quantize(rows.float(), scale, zero, static)
    expected = rounded.double() @ dense.double().t()
    assert torch.equal(make_linear(weight)(rows), expected.bfloat16())


FP8: dict[str, tuple[dict[str, Any], str, Callable[[int, int], tuple[int, ...]], Any]] = {
    "blocks": (
        {"quant_method": "fp8", "weight_block_size": list(BLOCK)},
        "weight_scale_inv",
        blocks_of,
        BLOCK,
    ),
    "whole": ({"quant_method": "fp8"}, "weight_scale_inv", lambda *_: (), None),
    "whole, vLLM's names": ({"quant_method": "fp8"}, "weight_scale", lambda *_: (1,), None),
    "FBGEMM's rows": (
        {"quant_method": "fbgemm_fp8"},
        "weight_scale",
        lambda rows, _: (rows, 1),
        None,
    ),
}


@pytest.mark.parametrize("case", FP8)
def test_fp8_is_dequantised_as_by_transformers(tmp_path: Path, case: str) -> None:
    """By one reader: FBGEMM's own multiplies on GPUs alone."""
    torch.manual_seed(2)
    config, scale, scale_shape, block = FP8[case]
    shape = (48, 32)
    found = fp8(*shape, scale=scale, shape=scale_shape, block=block)
    tensors = {f".{name}": tensor for name, tensor in found.tensors.items()}
    weight = read(tmp_path, config, tensors, matrix(shape))
    make_reader: Any = finegrained_fp8.Fp8Dequantize
    reader = make_reader(None)
    numbers, scales = found.tensors["weight"], found.tensors[scale]
    assert isinstance(weight, ScaledFp8)
    assert torch.equal(weight.dense(), reader._dequantize_one(numbers, scales, torch.bfloat16))


def test_microscaled_experts_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(2)
    blocks = torch.randint(0, 256, (3, 12, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (3, 12, 2), dtype=torch.uint8)
    shape = (3, 64, 12)
    source = Source("experts.up", shape, "up.weight", convert=lambda tensor: tensor.transpose(1, 2))
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    weight = read(tmp_path, config, {"_blocks": blocks, "_scales": scales}, source)
    assert isinstance(weight, Codebook)
    expected = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    assert expected.shape == shape
    assert torch.equal(weight.dense(), expected.transpose(1, 2))


_GPTQ: dict[str, Any] = {"quant_method": "gptq", "group_size": 32, "sym": False}

WRITTEN: dict[str, dict[str, Any]] = {
    "gptq": {**_GPTQ, "bits": 4},
    "gptq_order": {**_GPTQ, "bits": 4, "desc_act": True},
    "gptq_v2": {**_GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"},
    "llm_int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "nf4_nested": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "fp4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "torchao_rows": {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}},
    },
    "torchao_groups": {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}},
    },
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_others_say_what_their_writers_say(tmp_path: Path, name: str) -> None:
    """See `write_files`."""
    tensors = load_file(FILES / f"{name}.safetensors")
    dense = tensors.pop("dense")
    own = {key.removeprefix("m"): tensor for key, tensor in tensors.items()}
    weight = read(tmp_path, WRITTEN[name], own, matrix((len(dense), 128)))
    assert weight.num_bytes < dense.nbytes
    assert torch.equal(weight.dense(), dense)
