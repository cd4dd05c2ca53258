"""Checkpoints with random quantised matrices, and the same with the floats that these stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from tests.support.quantising import (
    BLOCK,
    GROUP,
    Format,
    Maker,
    Quantised,
    awq,
    blocks_of,
    fp8,
    gptq,
    integers,
    llm_int8,
    mxfp4,
    nf4,
    packed_integers,
    torchao_int4,
    torchao_int8,
)

_AWQ: Final = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}
_GPTQ: Final = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": GROUP,
    "sym": False,
    "desc_act": False,
}
_BITS_4: Final = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}


def _compressed(layout: str, activations: Any = None, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"type": "int", "symmetric": True, "dynamic": False, **weights},
                "input_activations": activations,
                "output_activations": None,
            }
        },
    }


def _torchao(kind: str, **data: Any) -> dict[str, Any]:
    return {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": kind, "_data": data}},
    }


_FLOATS: Final = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
_INPUT_SCALE: Final = {"input_scale": torch.tensor(0.5)}

FORMATS: Final[Mapping[str, Format]] = {
    "AWQ": Format(_AWQ, awq),
    # Long enough to stay packed on CPUs.
    "AWQ, groups of 16": Format(_AWQ | {"group_size": 16}, partial(awq, size=16)),
    "GPTQ": Format(_GPTQ, gptq),
    "GPTQ, groups of 16": Format(_GPTQ | {"group_size": 16}, partial(gptq, size=16)),
    "GPTQ, symmetric, whole rows": Format(
        _GPTQ | {"sym": True, "group_size": -1, "checkpoint_format": "gptq"},
        partial(gptq, symmetric=True, size=None),
    ),
    "GPTQ, act-order": Format(_GPTQ | {"desc_act": True}, partial(gptq, act_order=True)),
    "GPTQ 2": Format(_GPTQ | {"checkpoint_format": "gptq_v2"}, partial(gptq, first_version=False)),
    "GPTQ of 8 bits, act-order": Format(
        _GPTQ | {"desc_act": True, "bits": 8}, partial(gptq, bits=8, act_order=True)
    ),
    "W4A16": Format(
        _compressed("pack-quantized", num_bits=4, strategy="group", group_size=GROUP),
        packed_integers,
    ),
    "W4A16, groups of 16": Format(
        _compressed("pack-quantized", num_bits=4, strategy="group", group_size=16),
        partial(packed_integers, size=16),
    ),
    "W4A16, asymmetric, act-order": Format(
        _compressed(
            "pack-quantized",
            num_bits=4,
            strategy="group",
            group_size=GROUP,
            symmetric=False,
            actorder="group",
        ),
        partial(packed_integers, symmetric=False, act_order=True),
        key="compression_config",
    ),
    "W8A16": Format(
        _compressed("pack-quantized", num_bits=8, strategy="channel"),
        partial(packed_integers, bits=8, size=None),
    ),
    "W8A16 as int8": Format(
        _compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        partial(integers, symmetric=False),
    ),
    "W8A8": Format(
        _compressed(
            "int-quantized",
            {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
            num_bits=8,
            strategy="channel",
        ),
        integers,
    ),
    "W8A8, static": Format(
        _compressed(
            "int-quantized",
            {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"},
            num_bits=8,
            strategy="channel",
        ),
        partial(integers, others={"input_scale": torch.tensor([0.015])}),
    ),
    "compressed FP8": Format(
        _compressed("float-quantized", _FLOATS, num_bits=8, type="float", strategy="channel"),
        partial(fp8, scale="weight_scale", shape=lambda rows, _: (rows, 1), dtype=torch.bfloat16),
    ),
    "compressed FP8, static": Format(
        _compressed(
            "float-quantized",
            {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"},
            num_bits=8,
            type="float",
            strategy="tensor",
        ),
        partial(fp8, scale="weight_scale", shape=lambda *_: (1,), others=_INPUT_SCALE),
    ),
    "compressed FP8 in blocks": Format(
        _compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            block_structure=list(BLOCK),
        ),
        partial(fp8, scale="weight_scale", shape=blocks_of, block=BLOCK),
    ),
    "FP8 in blocks": Format(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
        },
        partial(fp8, scale="weight_scale_inv", shape=blocks_of, block=BLOCK),
    ),
    "FP8": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        partial(fp8, scale="weight_scale", shape=lambda *_: (), others=_INPUT_SCALE),
    ),
    "FBGEMM FP8": Format(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        partial(fp8, scale="weight_scale", shape=lambda rows, _: (rows, 1)),
    ),
    "LLM.int8()": Format(
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, llm_int8
    ),
    "NF4": Format(_BITS_4 | {"bnb_4bit_quant_type": "nf4"}, partial(nf4, nested=False)),
    "NF4, blocks of 16": Format(
        _BITS_4 | {"bnb_4bit_quant_type": "nf4"}, partial(nf4, nested=False, size=16)
    ),
    "NF4, nested": Format(
        _BITS_4 | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        partial(nf4, nested=True),
    ),
    "torchao int8": Format(_torchao("Int8WeightOnlyConfig", version=2), torchao_int8),
    "torchao int4": Format(
        _torchao("Int4WeightOnlyConfig", version=2, group_size=GROUP), torchao_int4
    ),
}

WEIGHTS_ALONE: Final = tuple(name for name in FORMATS if not name.startswith("W8A8"))
"""Formats whose products are those of what the weights stand for."""

MXFP4: Final = Format(
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    mxfp4,
)
"""Of stacked experts alone."""

NO_OTHERS: Final[Mapping[str, Maker]] = MappingProxyType({})

_KEPT: Final = ("embed", "lm_head", "router", ".gate.", "shared_expert_gate")
"""In names of matrices that writers leave as they are."""


def is_quantised(name: str, tensor: torch.Tensor, form: Format) -> bool:
    """Whether these checkpoints have a tensor of a dense one quantised."""
    if form is MXFP4:
        return tensor.dim() == 3
    return (
        name.endswith(".weight") and tensor.dim() == 2 and not any(part in name for part in _KEPT)
    )


def quantise(
    source: Path,
    quantised: Path,
    dense: Path,
    form: Format,
    others: Mapping[str, Maker] = NO_OTHERS,
) -> dict[str, Quantised]:
    """From a dense checkpoint of one file, which tells names and shapes, two in other folders, in float32.

    `others` make the matrices whose names contain theirs. The matrices come back by the names of their weights.
    """
    torch.manual_seed(3)
    tensors = load_file(source / "model.safetensors")
    found = {}
    for name, tensor in tensors.items():
        own = [make for part, make in others.items() if part in name]
        if own or is_quantised(name, tensor, form):
            found[name] = (own or [form.quantise])[0](*tensor.shape)
    kept = {name: tensor for name, tensor in tensors.items() if name not in found}
    packed = {
        f"{name.removesuffix('weight')}{end}": tensor
        for name, each in found.items()
        for end, tensor in each.tensors.items()
    }
    config = json.loads((source / "config.json").read_text())
    write(quantised, kept | packed, config | {form.key: form.config})
    write(dense, kept | {name: each.dense.float() for name, each in found.items()}, config)
    return found


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """A checkpoint of one file."""
    folder.mkdir(exist_ok=True)
    # Scalars that modules share would be refused.
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(own, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
