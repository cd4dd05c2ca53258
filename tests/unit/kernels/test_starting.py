"""Of a kernel, each variant is asked for once; then it is started with the arguments in its own order, those that are
bound to it among them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from pagemesh.kernels import launch
from pagemesh.kernels.launch import BoundKernel, noting
from pagemesh.kernels.target import TARGETS, playing


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

    def __init__(self, function: Callable[..., None] = scale) -> None:
        super().__init__(function, do_not_specialize=["step"])
        self.compiled: list[Compiled] = []
        self.asked: list[dict[str, object]] = []

    def __getitem__(self, grid: object) -> Callable[..., Compiled]:
        def start(**arguments: object) -> Compiled:
            self.asked.append(arguments)
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return start


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    gpu = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=gpu))
    for name in ("_compiled", "_unbound", "_kinds"):
        monkeypatch.setattr(launch, name, {})
    return Kernel()


def arguments(**changes: object) -> dict[str, object]:
    usual = {"rows": torch.zeros(64), "weight": None, "size": 48, "step": 48, "factor": 0.5}
    # Not in the kernel's order.
    return {"BLOCK": 64, **usual, **changes}


BOUND = [
    (),
    ("rows",),
    ("weight", "size", "step"),
    ("rows", "weight", "BLOCK"),
    ("factor", "BLOCK"),
]
"""What may be."""


def bind(kernel: Kernel, names: tuple[str, ...], **changes: object) -> BoundKernel:
    return BoundKernel(kernel, {name: arguments(**changes)[name] for name in names})


def start(kernel: Kernel, names: tuple[str, ...] = (), **changes: object) -> None:
    """With these bound to it."""
    rest = {k: value for k, value in arguments(**changes).items() if k not in names}
    bind(kernel, names, **changes).start((5, 2), rest)


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
@pytest.mark.parametrize("bound", BOUND, ids="-".join)
def test_what_is_compiled_otherwise_is_another_variant(
    kernel: Kernel, bound: tuple[str, ...], changes: dict[str, object]
) -> None:
    start(kernel, bound)
    start(kernel, bound, **changes)
    assert len(kernel.compiled) == 2


@pytest.mark.parametrize(
    "changes",
    [{"rows": torch.zeros(9)}, {"size": 64}, {"step": 1}, {"step": 7}, {"factor": 1.0}],
    ids=lambda changes: "-".join(changes),
)
@pytest.mark.parametrize("bound", BOUND, ids="-".join)
def test_what_is_compiled_alike_is_one_variant(
    kernel: Kernel, bound: tuple[str, ...], changes: dict[str, object]
) -> None:
    start(kernel, bound)
    start(kernel, bound, **changes)
    assert len(kernel.compiled) == 1


def test_what_is_bound_is_no_variant_of_what_is_not(kernel: Kernel) -> None:
    # A number in the place of another's: as lists of facts both are the same.
    BoundKernel(kernel, {"size": 64}).start((1,), omit("size", step=48))
    BoundKernel(kernel, {"step": 64}).start((1,), omit("step", size=48))
    BoundKernel(kernel, {}).start((1,), arguments())
    assert len(kernel.compiled) == 3


def omit(name: str, **changes: object) -> dict[str, object]:
    return {k: value for k, value in arguments(**changes).items() if k != name}


def test_other_options_are_another_variant(kernel: Kernel) -> None:
    for num_warps in (4, 8):
        launch.launch(kernel, (1,), arguments(), num_warps=num_warps)
    launch.launch(kernel, (1,), arguments(), num_warps=8)
    assert [each["num_warps"] for each in kernel.asked] == [4, 8]


@pytest.mark.parametrize(
    "bound", [*BOUND, ("weight", "size", "step", "factor", "BLOCK")], ids="-".join
)
def test_a_variant_is_started_with_its_arguments_in_the_kernels_order(
    kernel: Kernel, bound: tuple[str, ...]
) -> None:
    rows = torch.zeros(64)
    start(kernel, bound)
    rest = {k: value for k, value in arguments(rows=rows, size=64).items() if k not in bound}
    bind(kernel, bound, rows=rows, size=64).start((9,), rest)
    (compiled,) = kernel.compiled
    grid, stream = (9, 1, 1), 77
    facts = ("function", "metadata", None, None, None)
    values = (rows.data_ptr(), None, 64, 48, 0.5, 64)
    # The first start was Triton's own.
    assert compiled.starts == [(*grid, stream, *facts, *values)]
    assert kernel.asked[0].keys() - arguments().keys() == {
        *("num_warps", "num_stages", "enable_fp_fusion")
    }


def test_each_start_has_its_own_arguments(kernel: Kernel) -> None:
    bound = BoundKernel(kernel, {"weight": None, "step": 48, "factor": 0.5, "BLOCK": 64})
    tensors = [torch.zeros(64) for _ in range(3)]
    for size, rows in enumerate(tensors, 2):
        bound.start((1,), {"rows": rows, "size": size})
    (compiled,) = kernel.compiled
    assert [(each[9], each[11]) for each in compiled.starts] == [
        (rows.data_ptr(), size) for size, rows in enumerate(tensors[1:], 3)
    ]


def test_nothing_is_started_without_programs(kernel: Kernel) -> None:
    BoundKernel(kernel, {}).start((5, 0), arguments())
    assert kernel.asked == []


def early(rows, EARLY: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: N803
    pass


@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_overlaps_is_told_by_the_device_whether_it_starts_early() -> None:
    kernel = Kernel(early)
    bound = BoundKernel(kernel, {}, overlaps=True)
    for capability in (80, 90, 80, 90):
        with playing(TARGETS[capability]):
            bound.start((1,), {"rows": torch.zeros(64)})
    assert [(each["EARLY"], each["launch_pdl"]) for each in kernel.asked] == [
        (False, False),
        (True, True),
    ]
    with noting() as notes:
        bound.start((0,), {"rows": torch.zeros(64)})
    assert notes[0].arguments["EARLY"] is notes[0].options["launch_pdl"] is True


def test_arguments_that_are_missing_are_named(kernel: Kernel) -> None:
    with pytest.raises(KeyError, match="size"):
        BoundKernel(kernel, {}).start((1,), omit("size"))
