"""What cannot be read is refused before memory is taken, naming file, tensor and what was found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import load_model
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from tests.support.quantised_checkpoints import FORMATS, MXFP4, quantise, write
from tests.unit.models.model_folder import write_model_of
from tests.unit.models.quantization.test_quantised_formats import SHAPES

INT8_ROWS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def make(folder: Path, name: str, **sizes: Any) -> Path:
    source = write_model_of(folder, **(SHAPES | sizes))
    quantise(source, folder / "quantised", folder / "dense", FORMATS[name])
    return folder / "quantised"


def configure(folder: Path, **changes: Any) -> Path:
    """Change what config.json says of the format; a change to None takes the key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
    return folder


def refusal(folder: Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(ModelConfig(str(folder), **settings))
    return caught.value.message


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("exl2", "quantised by exl2"),
        ("aqlm", "quantised by aqlm"),
        ("hqq", "quantised by hqq"),
        (None, "quantised by an unnamed method"),
    ],
)
def test_an_unknown_method_is_named(tmp_path: Path, method: str | None, told: str) -> None:
    folder = configure(make(tmp_path, "AWQ"), quant_method=method)
    message = refusal(folder)
    assert message == (
        f"{folder}/config.json names a checkpoint {told}, which cannot be read; those by awq, bitsandbytes,"
        " compressed-tensors, fbgemm_fp8, fp8, gguf, gptq, mxfp4, torchao can"
    )


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("AWQ", {"version": "gemv"}, "version = 'gemv', but it must be \"gemm\""),
        ("AWQ", {"bits": 3}, "bits = 3, but it must be 4"),
        ("AWQ", {"zero_point": False}, "zero_point = False, but it must be true"),
        ("AWQ", {"group_size": 0}, "group_size = 0, but it must be a positive integer"),
        ("AWQ", {"group_size": 12}, f"groups of 12 inputs, which do not divide the 32 of {Q_PROJ}"),
        ("GPTQ", {"bits": 3}, "bits = 3, but it must be 4 or 8"),
        ("GPTQ", {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin', but it must be"),
        (
            "GPTQ",
            {"dynamic": {"+:[": {"bits": 8}}},
            "dynamic must have regular expressions, but '[' is none",
        ),
        ("GPTQ", {"group_size": "128"}, "group_size = '128', but it must be a positive integer"),
        ("W4A16", {"format": "marlin-24"}, "format = 'marlin-24', but it must be"),
        ("W4A16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format = 'sparse-24"),
        (
            "W4A16",
            {"kv_cache_scheme": {"num_bits": 4, "type": "int"}},
            "type = 'int', but it must be",
        ),
        (
            "W4A16",
            {"kv_cache_scheme": {"num_bits": 4, "type": "float"}},
            "kv_cache_scheme has num_bits = 4, but it must be 8",
        ),
        (
            "W4A16",
            {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "token"}},
            'kv_cache_scheme has strategy = \'token\', but it must be "tensor" or "attn_head"',
        ),
        (
            "W4A16",
            {"kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": False}},
            "kv_cache_scheme has symmetric = False, but it must be true",
        ),
        ("W4A16", {"transform_config": {"spin": 1}}, "transform_config has spin = 1, but it must"),
        (
            "W4A16",
            {"transform_config": {"config_groups": {"u": {}}}},
            "transform_config has config_groups = {'u': {}}, but it must be {}",
        ),
        ("W4A16", {"ignore": "lm_head"}, "ignore = 'lm_head', but it must be a list of strings"),
        ("W4A16", {"ignore": ["re:("]}, "ignore must have regular expressions, but '(' is none"),
        ("FP8 in blocks", {"weight_block_size": [128]}, "weight_block_size = [128], but it must"),
        ("FP8", {"fmt": "e5m2"}, "fmt = 'e5m2', but it must be \"e4m3\""),
        (
            "NF4",
            {"load_in_8bit": True},
            "load_in_4bit = True, but it must be true, or load_in_8bit",
        ),
        ("NF4", {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage = 'bfloat16'"),
        ("torchao int8", {"quant_type": {}}, "quant_type = {}, but it must be an object with a"),
        (
            "torchao int4",
            {
                "quant_type": {
                    "default": {
                        "_type": "Int4WeightOnlyConfig",
                        "_data": {"int4_packing_format": "tile_packed_to_4d"},
                    }
                }
            },
            "int4_packing_format = 'tile_packed_to_4d', but it must be",
        ),
    ],
)
def test_settings_that_no_kernel_has_are_named(
    tmp_path: Path, name: str, changes: dict[str, Any], told: str
) -> None:
    message = refusal(configure(make(tmp_path, name), **changes))
    assert message.startswith(f"{tmp_path}/quantised/config.json: quantization_config")
    assert told in message


@pytest.mark.parametrize(
    ("weights", "activations", "told"),
    [
        ({"num_bits": 3}, None, "weights has num_bits = 3, but it must be 4 or 8"),
        ({"type": "float", "num_bits": 4}, None, "num_bits = 4, but it must be 8"),
        ({"strategy": "tensor_group"}, None, "strategy = 'tensor_group', but it must be"),
        ({"strategy": "block", "block_structure": [1, 8]}, None, "strategy = 'block', but it must"),
        ({"actorder": "zigzag"}, None, "actorder = 'zigzag', but it must be \"group\" or"),
        ({}, INT8_ROWS, "format = 'pack-quantized', but it must be \"int-quantized\" or"),
    ],
)
def test_schemes_that_no_kernel_has_are_named(
    tmp_path: Path, weights: dict[str, Any], activations: dict[str, Any] | None, told: str
) -> None:
    folder = make(tmp_path, "W4A16")
    group = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
    group["group_0"]["weights"] |= weights
    group["group_0"]["input_activations"] = activations
    assert told in refusal(configure(folder, config_groups=group))


@pytest.mark.parametrize(
    ("weights", "activations", "told"),
    [
        (
            {},
            {"type": "int"},
            "input_activations has type = 'int', but it must be \"float\": nothing",
        ),
        ({}, {"type": None}, 'input_activations has type = None, but it must be "float": nothing'),
        ({}, {"num_bits": 4}, "input_activations has num_bits = 4, but it must be 8: nothing"),
        ({}, {"symmetric": False}, "input_activations has symmetric = False, but it must be true"),
        ({}, {"dynamic": "local"}, "dynamic = 'local', but it must be true or false"),
        ({}, {"strategy": "zigzag"}, 'strategy = \'zigzag\', but it must be "token" or "tensor"'),
        ({}, {"strategy": "group", "group_size": 0}, "group_size = 0, but it must be a positive"),
        ({}, {"dynamic": False}, "strategy = 'token', but it must be \"tensor\" where dynamic is"),
        ({"symmetric": False}, {}, "weights has symmetric = False, but it must be true"),
        ({"strategy": "block"}, {}, "weights has block_structure = None, but it must be a list"),
        ({"dynamic": True}, {}, "weights has dynamic = True, but it must be false"),
    ],
)
def test_activations_of_floats_that_no_kernel_has_are_named(
    tmp_path: Path, weights: dict[str, Any], activations: dict[str, Any], told: str
) -> None:
    folder = make(tmp_path, "compressed FP8")
    group = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
    group["group_0"]["weights"] |= weights
    group["group_0"]["input_activations"] |= activations
    assert told in refusal(configure(folder, config_groups=group))


@pytest.mark.parametrize(
    ("weights", "activations", "told"),
    [
        ({}, {"num_bits": 4}, "input_activations has num_bits = 4, but it must be 8: nothing"),
        ({}, {"type": "float"}, "input_activations has type = 'float', but it must be \"int\""),
        ({}, {"symmetric": False}, "input_activations has symmetric = False, but it must be true"),
        ({}, {"dynamic": "local"}, "dynamic = 'local', but it must be true or false"),
        ({}, {"strategy": "tensor"}, "strategy = 'tensor', but it must be \"token\" where dynamic"),
        ({}, {"dynamic": False}, "strategy = 'token', but it must be \"tensor\" where dynamic is"),
        ({"strategy": "group", "group_size": 8}, {}, "weights has strategy = 'group', but it must"),
        ({"symmetric": False}, {}, "weights has symmetric = False, but it must be true"),
        ({"num_bits": 4}, {}, "weights has num_bits = 4, but it must be 8"),
    ],
)
def test_activations_that_no_kernel_has_are_named(
    tmp_path: Path, weights: dict[str, Any], activations: dict[str, Any], told: str
) -> None:
    folder = make(tmp_path, "W8A8")
    group = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
    group["group_0"]["weights"] |= weights
    group["group_0"]["input_activations"] |= activations
    assert told in refusal(configure(folder, config_groups=group))


def test_rows_whose_sums_could_overflow_are_named() -> None:
    config = dict(FORMATS["W8A8"].config)
    found = CompressedTensors.read(ConfigJson(config, "config.json"))
    assert found.find("m.weight", (4, 131071), {}) is not None
    with pytest.raises(
        ConfigError, match=r"m\.weight has rows of 131072 integers .* but 131071 are"
    ):
        found.find("m.weight", (4, 131072), {})


def without(end: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{Q_PROJ}.{end}"]

    return apply


def changed(
    end: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{Q_PROJ}.{end}"] = change(tensors[f"{Q_PROJ}.{end}"]).contiguous()

    return apply


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("AWQ", without("qweight"), "lacks the tensor {q}.qweight of shape [32, 4]"),
        ("AWQ", without("scales"), "lacks the tensor {q}.scales of shape [4, 32]"),
        (
            "AWQ",
            changed("qzeros", lambda t: t[:2]),
            "has the tensor {q}.qzeros with shape [2, 4], but config.json asks for [4, 4]",
        ),
        (
            "GPTQ",
            changed("qweight", lambda t: t.float()),
            "has the tensor {q}.qweight of type F32, but only I32 can be loaded",
        ),
        (
            "GPTQ",
            changed("scales", lambda t: t.double()),
            "has the tensor {q}.scales of type F64, but only BF16, F16, F32 can be loaded",
        ),
        (
            "FP8 in blocks",
            changed("weight", lambda t: t.float().to(torch.float8_e5m2)),
            "has the tensor {q}.weight of type F8_E5M2, but only F8_E4M3 can be loaded",
        ),
        (
            "FP8 in blocks",
            changed("weight_scale_inv", lambda t: t[:1]),
            "has the tensor {q}.weight_scale_inv with shape [1, 4], but config.json asks for [2, 4]",
        ),
        ("NF4", without("weight.absmax"), "lacks the tensor {q}.weight.absmax"),
        (
            "NF4",
            changed("weight.absmax", lambda t: t[:100]),
            "has the tensor {q}.weight.absmax with shape [100], which does not divide {q}.weight of [32, 32] into runs",
        ),
        (
            "GPTQ",
            changed("scales", lambda t: t * torch.inf),
            "has the tensor {q}.qweight with values that are NaN or infinite",
        ),
        ("W8A8, static", without("input_scale"), "lacks the tensor {q}.input_scale of shape [1]"),
        (
            "W8A8",
            changed("weight_scale", lambda t: t * torch.nan),
            "has the tensor {q}.weight with values that are NaN or infinite",
        ),
        (
            "FP8",
            changed("weight", lambda t: (t.float() * torch.nan).to(torch.float8_e4m3fn)),
            "has the tensor {q}.weight with values that are NaN or infinite",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None], told: str
) -> None:
    folder = make(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    write(folder, tensors, json.loads((folder / "config.json").read_text()))
    assert told.format(q=Q_PROJ) in refusal(folder)


def test_values_that_the_type_cannot_hold_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path, "FP8")
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{Q_PROJ}.weight_scale"] *= 1e8
    write(folder, tensors, json.loads((folder / "config.json").read_text()))
    load_model(ModelConfig(str(folder), dtype="bfloat16"))
    assert "values that float16 cannot hold: choose another --dtype" in refusal(
        folder, dtype="float16"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_scales_that_only_few_codes_can_be_multiplied_with_are_named(
    tmp_path: Path, dtype: str
) -> None:
    """What these codes stand for is finite, but kernels multiply scales with zero points too."""
    folder = make(tmp_path, "W4A16")
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{Q_PROJ}.weight_packed"].fill_(0x88888888 - 2**32)
    tensors[f"{Q_PROJ}.weight_scale"].fill_(1e38)
    write(folder, tensors, json.loads((folder / "config.json").read_text()))
    assert refusal(folder, dtype=dtype) == (
        f"{folder}/model.safetensors has the tensor {Q_PROJ}.weight_scale, of a matrix with scales whose"
        " products with codes float32 cannot hold"
    )


def test_a_bias_that_the_model_has_no_place_for_must_be_zero(tmp_path: Path) -> None:
    folder = make(tmp_path, "GPTQ")
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    write(folder, tensors | {f"{Q_PROJ}.bias": torch.zeros(32)}, config)
    load_model(ModelConfig(str(folder)))
    write(folder, tensors | {f"{Q_PROJ}.bias": torch.ones(32)}, config)
    assert f"has the tensor {Q_PROJ}.bias with other numbers than zeros" in refusal(folder)
    write(folder, tensors | {"model.norm.bias": torch.zeros(32)}, config)
    assert "has the tensor model.norm.bias with shape [32], which config.json has no" in refusal(
        folder
    )


@pytest.mark.parametrize("name", ["AWQ", "GPTQ"])
def test_outputs_that_fill_no_words_are_named(tmp_path: Path, name: str) -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 1}
    folder = write_model_of(tmp_path, **(SHAPES | sizes))
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_proj.weight"]
    write(folder, tensors, config | {"quantization_config": FORMATS[name].config})
    assert refusal(folder) == (
        f"{folder}/config.json: quantization_config packs 8 outputs into a number, which does not divide the 4 of"
        " model.layers.0.self_attn.k_proj.weight"
    )


def test_the_fingerprint_is_of_the_packed_tensors_and_the_format(tmp_path: Path) -> None:
    folder = make(tmp_path, "GPTQ")
    own = load_model(ModelConfig(str(folder))).fingerprint
    assert load_model(ModelConfig(str(tmp_path / "dense"))).fingerprint != own
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    tensors[f"{Q_PROJ}.qzeros"][0, 0] += 1
    write(folder, tensors, config)
    other = load_model(ModelConfig(str(folder))).fingerprint
    assert other != own
    configure(folder, checkpoint_format="gptq_v2")
    assert load_model(ModelConfig(str(folder))).fingerprint not in (own, other)


def test_a_quantised_checkpoint_may_have_no_matrix_quantised(tmp_path: Path) -> None:
    """Of GPT-OSS's format, which has stacks of experts alone."""
    source = write_model_of(tmp_path, **SHAPES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", MXFP4)
    named = load_model(ModelConfig(str(tmp_path / "quantised")))
    assert named.fingerprint != load_model(ModelConfig(str(tmp_path / "dense"))).fingerprint
