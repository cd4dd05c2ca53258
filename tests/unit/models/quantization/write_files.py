"""Writes the files beside it: matrices as others quantise and save them, and as they read them: bitsandbytes, torchao,
and of GPTQ auto-round.

    pip install bitsandbytes==0.50.2 torchao==0.18.0 auto-round==0.16.1
    python -m tests.unit.models.quantization.write_files

They are too large to be installed for a test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
from bitsandbytes import functional
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8Tensor, PerGroup, PerRow

FOLDER: Final = Path(__file__).with_name("files")
SHAPE: Final = (24, 128)
GPTQ_SHAPE: Final = (32, 128)


def main() -> None:
    torch.manual_seed(1)
    weight = torch.randn(SHAPE).bfloat16()
    write_bitsandbytes(weight)
    write_torchao(weight)
    write_gptq()


def write_bitsandbytes(weight: torch.Tensor) -> None:
    """8 bits, and those of 4."""
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


def write_torchao(weight: torch.Tensor) -> None:
    """8 bits."""
    for name, granularity in (("torchao_rows", PerRow()), ("torchao_groups", PerGroup(32))):
        quantised = Int8Tensor.from_hp(weight, granularity=granularity)
        flat, _ = flatten_tensor_state_dict({"m.weight": quantised})
        own = {key.removeprefix("m."): tensor for key, tensor in flat.items()}
        _save(name, own, quantised.dequantize())


def write_gptq() -> None:
    """Both versions of the format; the shape is that of whole words of 32 outputs, which its packer wants."""
    num_outputs, num_inputs = GPTQ_SHAPE
    for name, module, bits, has_order in (
        ("gptq", qlinear_torch_zp, 4, False),
        ("gptq_order", qlinear_torch_zp, 4, True),
        ("gptq_v2", qlinear_torch, 8, False),
    ):
        torch.manual_seed(1)
        layer = module.QuantLinear(bits, 32, num_inputs, num_outputs, bias=False, g_idx=has_order)
        # One of them asks for it, and has none.
        layer.device = torch.device("cpu")
        linear = torch.nn.Linear(num_inputs, num_outputs, bias=False)
        scales = (torch.rand(num_outputs, num_inputs // 32) + 0.5) / (4 << bits)
        zeros = torch.randint(1, 1 << bits, scales.shape).float()
        layer.pack(linear, scales, zeros)
        if has_order:
            layer.g_idx = (torch.randperm(num_inputs) // 32).int()
        tensors = dict(layer.state_dict())
        # It multiplies in the type of the scales.
        layer.scales = layer.scales.float()
        _save(name, tensors, layer(torch.eye(num_inputs)).t().bfloat16())


def _save(name: str, tensors: dict[str, torch.Tensor], dense: torch.Tensor) -> None:
    kept = {f"m.{key}": tensor.contiguous().clone() for key, tensor in tensors.items()}
    FOLDER.mkdir(exist_ok=True)
    save_file({**kept, "dense": dense.contiguous()}, FOLDER / f"{name}.safetensors")


if __name__ == "__main__":
    main()
