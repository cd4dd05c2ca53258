"""Writes the files beside it: matrices as bitsandbytes and torchao quantise and save them, and as they read them.

    pip install bitsandbytes==0.50.2 torchao==0.18.0
    python -m tests.unit.models.quantization.write_files

Both are too large to be installed for a test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from bitsandbytes import functional
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8Tensor, PerGroup, PerRow

FOLDER: Final = Path(__file__).with_name("files")
SHAPE: Final = (24, 128)


def main() -> None:
    torch.manual_seed(1)
    weight = torch.randn(SHAPE).bfloat16()
    codes, largest, _ = functional.int8_vectorwise_quant(weight.half())
    dense = functional.int8_vectorwise_dequant(codes, largest).bfloat16()
    layout = torch.tensor(0, dtype=torch.uint8)
    _save("llm_int8", {"weight": codes, "SCB": largest, "weight_format": layout}, dense)
    for name, kind, is_nested in (
        ("nf4", "nf4", False),
        ("nf4_nested", "nf4", True),
        ("fp4", "fp4", False),
    ):
        halves, state = functional.quantize_4bit(
            weight, quant_type=kind, compress_statistics=is_nested
        )
        tensors = {f"weight.{key}": each for key, each in state.as_dict(packed=True).items()}
        _save(name, {"weight": halves, **tensors}, functional.dequantize_4bit(halves, state))
    for name, granularity in (("torchao_rows", PerRow()), ("torchao_groups", PerGroup(32))):
        quantised = Int8Tensor.from_hp(weight, granularity=granularity)
        flat, _ = flatten_tensor_state_dict({"m.weight": quantised})
        own = {key.removeprefix("m."): tensor for key, tensor in flat.items()}
        _save(name, own, quantised.dequantize())


def _save(name: str, tensors: dict[str, torch.Tensor], dense: torch.Tensor) -> None:
    kept = {f"m.{key}": tensor.contiguous().clone() for key, tensor in tensors.items()}
    FOLDER.mkdir(exist_ok=True)
    save_file({**kept, "dense": dense.contiguous()}, FOLDER / f"{name}.safetensors")


if __name__ == "__main__":
    main()
