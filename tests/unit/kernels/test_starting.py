"""Of a kernel, each variant is asked for once; then it is started with the arguments in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from pagemesh.kernels import launch

OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": False}


def scale(rows, weight, size, step, factor, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: N803
    pass


class Compiled:
    """What Triton gives for a variant."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.starts: list[tuple[object, ...]] = []

    def run(self, *arguments: object) -> None:
        self.starts.append(arguments)


class Kernel(JITFunction):  # type: ignore[misc]
    """Counts what is compiled, and starts nothing."""

    def __init__(self) -> None:
        super().__init__(scale, do_not_specialize=["step"])
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: object) -> Callable[..., Compiled]:
        def start(**arguments: object) -> Compiled:
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return start


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    gpu = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=gpu))
    monkeypatch.setattr(launch, "_variants", {})
    return Kernel()


def arguments(**changes: object) -> dict[str, object]:
    usual = {"rows": torch.zeros(64), "weight": None, "size": 48, "step": 48, "factor": 0.5}
    # Not in the kernel's order.
    return {"BLOCK": 64, **usual, **changes}


def start(kernel: Kernel, **changes: object) -> None:
    launch.start(kernel, (5, 2), arguments(**changes), OPTIONS)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": torch.zeros(64, dtype=torch.bfloat16)},
        {"rows": torch.zeros(64)[1:]},
        {"weight": torch.zeros(64)},
        {"size": 1},
        {"size": 49},
        {"size": 1 << 40},
        {"step": 1 << 40},
        {"BLOCK": 128},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_is_compiled_otherwise_is_another_variant(
    kernel: Kernel, changes: dict[str, object]
) -> None:
    start(kernel)
    start(kernel, **changes)
    assert len(kernel.compiled) == 2


@pytest.mark.parametrize(
    "changes",
    [{"rows": torch.zeros(9)}, {"size": 64}, {"step": 1}, {"step": 7}, {"factor": 1.0}],
    ids=lambda changes: "-".join(changes),
)
def test_what_is_compiled_alike_is_one_variant(kernel: Kernel, changes: dict[str, object]) -> None:
    start(kernel)
    start(kernel, **changes)
    assert len(kernel.compiled) == 1


def test_other_options_are_another_variant(kernel: Kernel) -> None:
    start(kernel)
    launch.start(kernel, (1,), arguments(), OPTIONS | {"num_warps": 8})
    assert len(kernel.compiled) == 2


def test_a_variant_is_started_with_its_arguments_in_the_kernels_order(kernel: Kernel) -> None:
    rows = torch.zeros(64)
    start(kernel)
    launch.start(kernel, (9,), arguments(rows=rows, size=64), OPTIONS)
    (compiled,) = kernel.compiled
    grid, stream = (9, 1, 1), 77
    facts = ("function", "metadata", None, None, None)
    values = (rows.data_ptr(), None, 64, 48, 0.5, 64)
    # The first start was Triton's own.
    assert compiled.starts == [(*grid, stream, *facts, *values)]
