"""Records the kernels of a computation, to run them again on other contents of the same memory.

Of a small model, making a call ready takes as long as the kernel: shapes are checked, memory is taken, a view
is made. Done once, all of it is settled, as in a CUDA graph: what remains is a list of functions and their
arguments, which `Program` runs in one call.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagemesh.kernels.jit.parallel import Call, noting_calls

_ALIGNMENT = 64


class ResultMemory:
    """Memory of what recorded computations make on the way; each of them may overwrite that of all others."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray[Any, np.dtype[np.uint8]]]] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """That were taken from the system."""
        return self._num_bytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any values; its memory is free again when it and all views of it are gone."""
        num_bytes = math.prod(shape) * dtype.itemsize
        size = max(_ALIGNMENT, 1 << (num_bytes - 1).bit_length()) if num_bytes else _ALIGNMENT
        free = self._free.setdefault(size, [])
        buffer = free.pop() if free else self._reserve(size)
        # The tensor keeps this array, and nothing else does.
        lent = buffer[:num_bytes]
        weakref.finalize(lent, free.append, buffer).atexit = False
        return torch.from_numpy(lent).view(dtype).view(tuple(shape))

    def _reserve(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        self._num_bytes += size + _ALIGNMENT
        whole = np.empty(size + _ALIGNMENT, np.uint8)
        begin = -whole.ctypes.data % _ALIGNMENT
        return whole[begin : begin + size]


class Recording(NamedTuple):
    """What was computed meanwhile."""

    calls: list[Call]
    """The kernels, in the order in which they were called."""
    others: list[str]
    """Operations that are no kernels: with any, the calls are of no use."""


@contextmanager
def recording(memory: ResultMemory) -> Iterator[Recording]:
    """Within it, what this thread computes is computed as ever, with results in `memory`, and recorded.

    Whoever runs the calls again keeps `memory`, and all tensors that were there before.
    Only kernels of `run_parallel` can be run again; any other operation that computes or copies something is named.
    What is read from tensors meanwhile, to decide what to compute, is not noticed: there must be nothing of the kind.
    """
    watch = _Watch(memory)
    with noting_calls() as calls, watch:
        yield Recording(calls, watch.others)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives out memory, and names what is neither that nor a view."""

    def __init__(self, memory: ResultMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.others: list[str] = []
        self._memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled by torch; to be skipped by its compiler, that is imported, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for each of its operations."""
        kwargs = kwargs or {}
        if function is torch.ops.aten.empty.memory_format:
            return self._memory.empty(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        if not _is_view(function):
            self.others.append(str(function))
        compute: Callable[..., Any] = function
        return compute(*args, **kwargs)


def _is_view(function: Any) -> bool:
    """Whether an operation gives the same memory in another shape, and changes none of it."""
    results = function._schema.returns
    return bool(results) and all(
        result.alias_info is not None and not result.alias_info.is_write for result in results
    )
