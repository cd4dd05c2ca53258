"""A model of transformers as a `CausalModel`, with pagemesh's matmuls, so that a token's bits do not depend on its batch.

torch multiplies with MKL, oneDNN or cuBLAS, whose order of sums follows the number of rows. Modules whose weights
a model's code reads itself, past the module that has them, keep theirs.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from pagemesh.kernels.linear import Dense, Linear, Weight, make_linear
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.models.interface import ForwardContext
from pagemesh.models.transformers_backend.attention import AttentionCall, answering
from pagemesh.models.transformers_backend.experts import replace_experts


class TransformersModel:
    """Runs the tokens of a step as one row of a batch. See `CausalModel`.

    transformers gives no way to run a model's output head alone, with the caps and scales around it.
    So `forward` gives the logits of the rows already, and `logits` gives them back.
    """

    def __init__(self, model: Any, head_dim: int) -> None:
        """`model` runs the `PAGED` attention; `head_dim` is that of the KV blocks."""
        self._model = model
        self._head_dim = head_dim

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ForwardContext,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `CausalModel`; gives logits [R, vocab]."""
        with answering(_PagedCalls(attention, self._head_dim)):
            output = self._model(
                input_ids=token_ids.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=0 if rows is None else rows,
            )
        logits: torch.Tensor = output.logits.squeeze(0)
        return logits

    @property
    def name(self) -> str:
        """Of the model's class."""
        return type(self._model).__name__

    def replace_matmuls(self, packed: Mapping[str, Quantised]) -> None:
        """Multiply with pagemesh's matmuls from now on, on the device where the model is. See `replace_matmuls`."""
        replace_matmuls(self._model, packed)

    def move(self, device: torch.device) -> None:
        """Run on another device from now on; before matmuls are replaced."""
        self._model.to(device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class _PagedCalls:
    """`AttentionCalls` over a step's KV: the n-th call of a forward pass is layer n."""

    def __init__(self, attention: ForwardContext, head_dim: int) -> None:
        self._attention = attention
        self._head_dim = head_dim
        self._layer = 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        layer, self._layer = self._layer, self._layer + 1
        query, key, value = (self._tokens(each) for each in (call.query, call.key, call.value))
        # The model has turned them itself.
        self._attention.write(layer, torch.cat((key, value), dim=1), None)
        attended = self._attention.attend(layer, query)
        return attended[..., : call.value.shape[-1]].unsqueeze(0)

    def _tokens(self, heads: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] of [1, heads, T, dim]; zeros behind what is shorter change no product."""
        tokens = heads.squeeze(0).transpose(0, 1)
        missing = self._head_dim - tokens.shape[-1]
        return tokens if missing == 0 else functional.pad(tokens, (0, missing))


_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights that all implementations of matmuls take."""

_SIZES: Final = {torch.nn.Linear: ("in_features", "out_features"), Conv1D: ("nx", "nf")}
"""Modules that are replaced, and what they call the numbers of their inputs and outputs."""


class BatchInvariantLinear(torch.nn.Module):
    """Computes what a `torch.nn.Linear` does, a row the same bits in any number of rows.

    It has no `weight` and no `bias`: the weight is in another layout, and whoever reads it gets an error
    instead of other numbers.
    """

    def __init__(self, multiply: Linear, weight: Weight) -> None:
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


_Matmuls = dict[tuple[torch.dtype, torch.device], BatchInvariantLinear]


class OwnWeight(torch.Tensor):
    """A weight that a module's own code hands to `functional.linear`, as routers do: there it is multiplied by
    pagemesh's matmul, in the type that the code has converted it to. Everywhere else it is any tensor."""

    _matmuls: _Matmuls

    @classmethod
    def of(cls, numbers: torch.Tensor, matmuls: _Matmuls | None = None) -> OwnWeight:
        """[out, in]; `matmuls` are those of the same weight in other types."""
        weight = numbers.as_subclass(cls)
        weight._matmuls = {} if matmuls is None else matmuls
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            first, weight, bias = (*args, None, None, None)[:3]
            if func is functional.linear and isinstance(weight, cls) and not kwargs:
                product = weight._matmul()(first)
                return product if bias is None else product + bias
            result = func(*args, **(kwargs or {}))
            if func in _CONVERSIONS and isinstance(first, cls) and isinstance(result, torch.Tensor):
                return cls.of(result, first._matmuls)
            return result

    def _matmul(self) -> BatchInvariantLinear:
        key = self.dtype, self.device
        found = self._matmuls.get(key)
        if found is None:
            weight = Dense(self.as_subclass(torch.Tensor).contiguous())
            found = BatchInvariantLinear(make_linear(weight, None), weight)
            self._matmuls[key] = found
        return found


_CONVERSIONS: Final = (torch.Tensor.type, torch.Tensor.to, torch.Tensor.float)
"""By which code gets a tensor in another type."""


NONE_PACKED: Final[Mapping[str, Quantised]] = MappingProxyType({})
"""Of a model that is not quantised."""


def replace_matmuls(model: torch.nn.Module, packed: Mapping[str, Quantised] = NONE_PACKED) -> None:
    """Replace a model's linear modules, experts and weights of modules with code of their own, on the device where they
    are.

    `packed` has weights by the paths of modules whose own weights are what those stand for, and of experts' parameters:
    they are multiplied in the place of these. Each weight is dropped as soon as it is copied, unless another module has
    it too.
    """
    for same in replaceable(model):
        matmul = _matmul_of(model.get_submodule(same[0]), packed.get(same[0]))
        for path in same:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, matmul)
    replace_experts(model, packed)
    for module in _with_own_weight(model):
        weight = module.weight.detach()
        del module.weight
        module.weight = OwnWeight.of(weight)


def replaceable(model: torch.nn.Module) -> list[list[str]]:
    """The paths of each linear module that can be replaced.

    Those whose weight the model's own code reads stay as they are, and so do subclasses, whose code is their own.
    """
    kept = names_of_read_weights(model)
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if _can_replace(module) and name_of(path) not in kept:
            paths.setdefault(id(module), []).append(path)
    return list(paths.values())


def _with_own_weight(model: torch.nn.Module) -> list[Any]:
    """Modules that are neither torch's nor like them, and have a matrix that no other module has."""
    counts = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    found = []
    for module in model.modules():
        weight = module._parameters.get("weight")
        is_torchs = isinstance(module, (torch.nn.Linear, torch.nn.Embedding, Conv1D))
        if weight is None or is_torchs or type(module).__module__.startswith("torch."):
            continue
        if weight.dim() == 2 and weight.dtype in _DTYPES and counts[id(weight)] == 1:
            found.append(module)
    return found


def matrix_of(module: torch.nn.Module) -> torch.Tensor:
    """The weight [out, in] of a linear module."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().t() if isinstance(module, Conv1D) else weight.detach()


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


def _matmul_of(module: Any, packed: Quantised | None) -> BatchInvariantLinear:
    matrix = matrix_of(module)
    weight: Weight
    if packed is None:
        weight = Dense(matrix.contiguous())
    else:
        weight = packed.moved(lambda tensor: tensor.to(matrix.device))
    bias = None if module.bias is None else module.bias.detach()
    matmul = BatchInvariantLinear(make_linear(weight, bias), weight)
    for size in _SIZES[type(module)]:
        setattr(matmul, size, getattr(module, size))
    return matmul


_INITIAL = "_init_weights"
"""The method of transformers' models that fills new weights; never called for those that were read."""


def names_of_read_weights(model: torch.nn.Module) -> frozenset[str]:
    """The X of every `….X.weight` and `….X.bias` in the files that define the model's classes.

    What is only read under another name is not found. OSError when a file cannot be had.
    """
    files = {
        base.__module__
        for module in model.modules()
        for base in type(module).__mro__
        if base.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    return frozenset().union(*map(_names_in, files))


def name_of(path: str) -> str:
    """What code calls the module at a path: the last part that is no number in a list."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


@cache
def _names_in(module: str) -> frozenset[str]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return frozenset(_read_names(tree))


def _read_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and node.name == _INITIAL:
        return
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        owner = node.value
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Attribute):
            yield owner.attr
    for child in ast.iter_child_nodes(node):
        yield from _read_names(child)
