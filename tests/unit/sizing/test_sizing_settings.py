"""Bytes of packed weights where there is only a config.json: each module has the bits that its settings give it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.quantised_checkpoints import FORMATS
from tests.unit.models.model_folder import write_config
from tests.unit.sizing.test_sizing_weights import SIZES, packed_of


def config_alone(folder: Path, form: dict[str, Any], **sizes: Any) -> Path:
    """Of two layers, without weights."""
    write_config(folder, **SIZES, num_hidden_layers=2, quantization_config=form, **sizes)
    return folder


def compressed(ignore: list[str], *groups: tuple[str, int], **weights: Any) -> dict[str, Any]:
    """A target and its bits for each group."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ignore,
        "config_groups": {
            f"group_{n}": {"targets": [target], "weights": {"num_bits": bits, **weights}}
            for n, (target, bits) in enumerate(groups)
        },
    }


ALL = ("qkv", "o", "up", "down")
NUMBERS = {"qkv": 768 * 256, "o": 256 * 256, "up": 768 * 256, "down": 256 * 384}
GPTQ, AWQ, FP8, INT8, NF4, TORCHAO_4, TORCHAO_8 = (
    dict(FORMATS[name].config)
    for name in ("GPTQ", "AWQ", "FP8", "LLM.int8()", "NF4", "torchao int4", "torchao int8")
)


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        (compressed([], ("Linear", 8)), [8, 8, 8, 8], [8, 8, 8, 8]),
        (
            compressed([], ("Linear", 8), ("re:.*layers.0.mlp.*", 4)),
            [8, 8, 4, 4],
            [8, 8, 8, 8],
        ),
        # A name counts before a class.
        (
            compressed([], ("Linear", 4), ("model.layers.0.mlp.down_proj", 8)),
            [4, 4, 4, 8],
            [4, 4, 4, 4],
        ),
        # Checkpoints without a head have other names.
        (compressed([], ("Linear", 4), ("layers.1.self_attn.o_proj", 8)), [4] * 4, [4, 8, 4, 4]),
        (compressed(["re:.*o_proj"], ("Linear", 4)), [4, 0, 4, 4], [4, 0, 4, 4]),
        (compressed(["model.layers.1.mlp.up_proj"], ("Linear", 4)), [4] * 4, [4, 4, 0, 4]),
        # Gates and ups of two kinds are dequantised.
        (compressed([], ("Linear", 4), ("re:.*up_proj", 8)), [4, 4, 0, 4], [4, 4, 0, 4]),
        (compressed([], ("re:.*self_attn.*", 4)), [4, 4, 0, 0], [4, 4, 0, 0]),
        (compressed([], ("Linear", 3)), [0] * 4, [0] * 4),
        (compressed([], ("Linear", 4), actorder="group"), [0] * 4, [0] * 4),
        (GPTQ | {"dynamic": {"-:.*mlp.*": {}}}, [4, 4, 0, 0], [4, 4, 0, 0]),
        (
            GPTQ | {"dynamic": {"+:.*o_proj": {"bits": 8}, "-:.*": {}}},
            [0, 8, 0, 0],
            [0, 8, 0, 0],
        ),
        (
            GPTQ | {"dynamic": {r".*\.1\..*down_proj": {"desc_act": True}}},
            [4] * 4,
            [4, 4, 4, 0],
        ),
        (GPTQ | {"bits": 8}, [8] * 4, [8] * 4),
        (AWQ | {"modules_to_not_convert": ["self_attn", "layers.1."]}, [0, 0, 4, 4], [0] * 4),
        (
            FP8 | {"ignored_layers": ["re:.*down.*", "model.layers.1.mlp["]},
            [8, 8, 8, 0],
            [8, 8, 8, 0],
        ),
        (
            INT8 | {"llm_int8_skip_modules": ["o_proj"]},
            [8, 0, 8, 8],
            [8, 0, 8, 8],
        ),
        (NF4, [4] * 4, [4] * 4),
        (TORCHAO_4, [4] * 4, [4] * 4),
        (TORCHAO_8, [8] * 4, [8] * 4),
        # Stacks of experts alone have codes there.
        ({"quant_method": "mxfp4"}, [0] * 4, [0] * 4),
    ],
)
def test_without_weights_each_module_has_the_bits_that_settings_give_it(
    tmp_path: Path, form: dict[str, Any], first: list[int], second: list[int]
) -> None:
    planned = packed_of(config_alone(tmp_path, form)).num_bytes
    assert planned == {
        f"layers.{layer}.{part}.weight": NUMBERS[part] * (2 * bits + 1) // 16
        for layer, all_bits in enumerate((first, second))
        for part, bits in zip(ALL, all_bits, strict=True)
        if bits
    }


def test_values_may_have_more_bits_than_queries(tmp_path: Path) -> None:
    form = compressed([], ("Linear", 4), ("re:.*v_proj", 8))
    planned = packed_of(config_alone(tmp_path, form)).num_bytes
    assert planned["layers.0.qkv.weight"] == 256 * 256 * (9 + 9 + 17) // 16


def test_groups_that_are_no_runs_stay_packed_on_gpus(tmp_path: Path) -> None:
    form = compressed([], ("Linear", 4), actorder="group")
    assert len(packed_of(config_alone(tmp_path, form), kind="cuda").num_bytes) == 8


def parts_of(folder: Path, recipe: str, form: dict[str, Any]) -> set[str]:
    """What of layers is packed of an architecture's config.json."""
    make_checkpoint(folder, RECIPES[recipe])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": form}))
    (folder / "model.safetensors").unlink()
    return {name.split(".", 2)[2] for name in packed_of(folder).num_bytes}


def test_without_weights_experts_alone_count_as_mxfp4(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "GPT-OSS", {"quant_method": "mxfp4"})
    assert parts == {"experts.up.weight", "experts.down.weight"}


def test_without_weights_what_chooses_experts_counts_as_dense(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "Qwen 2 MoE", GPTQ)
    assert "experts.up.weight" in parts
    assert not any("router" in part or "shared_gate" in part for part in parts)
