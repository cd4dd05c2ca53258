"""Gives a model of transformers pagemesh's products, so that a token's bits do not depend on its batch.

torch multiplies with MKL, oneDNN or cuBLAS, whose order of sums follows the number of rows.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers.pytorch_utils import Conv1D

from pagemesh.kernels.linear import Linear, make_linear
from pagemesh.models.transformers_backend.weight_readers import name_of, names_of_read_weights

_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights that all implementations of products take."""

_SIZES: Final = {torch.nn.Linear: ("in_features", "out_features"), Conv1D: ("nx", "nf")}
"""Modules that are replaced, and what they call the numbers of their inputs and outputs."""


class RowProducts(torch.nn.Module):
    """Computes what a `torch.nn.Linear` does, a row the same bits in any number of rows.

    It has no `weight` and no `bias`: the weight is in another layout, and whoever reads it gets an error
    instead of other numbers.
    """

    def __init__(self, multiply: Linear, weight: torch.Tensor) -> None:
        """`multiply` was made of the weight [out, in], which is not kept."""
        super().__init__()
        self._multiply = multiply
        self._num_outputs, self._num_inputs = weight.shape
        self._dtype = weight.dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] of the weight's type → [..., out]."""
        *others, num_inputs = inputs.shape
        if num_inputs != self._num_inputs or inputs.dtype != self._dtype:
            raise ValueError(
                f"inputs {list(inputs.shape)} of {inputs.dtype} do not fit a weight of"
                f" {self._num_inputs} inputs in {self._dtype}"
            )
        rows = inputs.reshape(-1, num_inputs)
        if len(rows) == 0:
            # An expert that no token goes to.
            return inputs.new_empty(*others, self._num_outputs)
        return self._multiply(rows).view(*others, self._num_outputs)


def replace_products(model: torch.nn.Module) -> None:
    """Replace a model's linear modules, on the device where they are.

    Those whose weight the model's own code reads stay as they are, and so do subclasses, whose code is
    their own. Each weight is dropped as soon as it is copied, unless another module has it too.
    """
    kept = names_of_read_weights(model)
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if _can_replace(module) and name_of(path) not in kept:
            paths.setdefault(id(module), []).append(path)
    for same in paths.values():
        products = _products_of(model.get_submodule(same[0]))
        for path in same:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, products)


def _can_replace(module: torch.nn.Module) -> bool:
    if type(module) not in _SIZES or "forward" in vars(module):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    weight, bias = module.weight, module.bias
    assert isinstance(weight, torch.Tensor)
    return (
        weight.dtype in _DTYPES
        and weight.numel() > 0
        and (bias is None or bias.dtype == weight.dtype)
    )


def _products_of(module: Any) -> RowProducts:
    weight = module.weight.detach()
    if isinstance(module, Conv1D):
        weight = weight.t().contiguous()
    bias = None if module.bias is None else module.bias.detach()
    products = RowProducts(make_linear(weight, bias), weight)
    for size in _SIZES[type(module)]:
        setattr(products, size, getattr(module, size))
    return products
