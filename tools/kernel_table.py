"""The table of what compiled kernels take, and what none may take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import triton

from pagemesh.kernels.launch import Launch
from pagemesh.kernels.target import TARGETS, Target

_DIGEST: Final = re.compile(r"^- (\w+): `([0-9a-f]+)`$", re.MULTILINE)
MOST_SPILLED_BYTES: Final = 32
"""Of a thread: some four values that are stored once and loaded again far from the inner loop, where
another version of the compiler is a register short."""

MOST_SPILLED_BY_LONG_TILES: Final = 640
"""Of a thread of a product whose tiles have 256 tokens: beside the sums of a segment it keeps those of the
segments before, once in thousands of inputs. An H200 is faster with it all the same."""


class Variant(NamedTuple):
    """A kernel as one case starts it on one target."""

    op: str
    case: str
    target: Target
    launch: Launch

    @property
    def kernel_name(self) -> str:
        """The name of the function in Triton."""
        return str(self.launch.kernel.__name__)


class Resources(NamedTuple):
    """What one program takes."""

    registers: int
    """Of each thread."""
    shared_bytes: int
    spilled_bytes: int
    """Of each thread, stores and loads together."""
    matrix: str
    """The kind of matrix instruction in use, if any."""


def defects(found: Iterable[tuple[Variant, Resources]]) -> list[str]:
    """What no kernel may do."""
    texts = []
    for variant, taken in found:
        name = f"{variant.kernel_name} ({variant.op}: {variant.case}) on sm_{variant.target.capability}"
        if taken.shared_bytes > variant.target.shared_bytes:
            texts.append(
                f"{name} wants {taken.shared_bytes} bytes of shared memory,"
                f" but a program has at most {variant.target.shared_bytes}"
            )
        if taken.spilled_bytes > _most_spilled_bytes(variant):
            texts.append(f"{name} spills {taken.spilled_bytes} bytes of registers")
    return texts


def _most_spilled_bytes(variant: Variant) -> int:
    is_long = variant.launch.arguments.get("BLOCK_T") == 256
    return MOST_SPILLED_BY_LONG_TILES if is_long else MOST_SPILLED_BYTES


def table(found: Iterable[tuple[Variant, Resources]], digests: Mapping[str, str]) -> str:
    """The whole document, with the digests of the kernels that it is of."""
    rows: dict[tuple[str, str, str, int], dict[int, Resources]] = {}
    for variant, taken in found:
        key = (
            variant.op,
            variant.kernel_name,
            variant.case,
            int(variant.launch.options["num_warps"]),
        )
        rows.setdefault(key, {})[variant.target.capability] = taken
    capabilities = list(TARGETS)
    lines = [
        "# What the kernels take",
        "",
        "Written by `make kernels`, which compiles each kernel for each GPU ahead of"
        f" time, {version_text()}; `make test-all` compares. Registers are those of a thread, shared"
        " memory in bytes is that of a program. No kernel spills more than"
        f" {MOST_SPILLED_BYTES} bytes of registers, but products with tiles of 256 tokens up to"
        f" {MOST_SPILLED_BY_LONG_TILES}. A kernel stands under the"
        " first case that needs it so; an empty field means that a case in front of it starts it alike.",
        "",
        "| operation | kernel | case | warps |"
        + "".join(f" sm_{c} registers | shared | matrix |" for c in capabilities),
        "|---|---|---|---|" + "---|---|---|" * len(capabilities),
    ]
    for (op, kernel, case, warps), by_capability in rows.items():
        line = f"| {op} | `{kernel}` | {case} | {warps} |"
        for capability in capabilities:
            line += _fields(by_capability.get(capability))
        lines.append(line)
    lines += [
        "",
        "`make test` compiles nothing, and compares what the table was made of: by operation, a digest of the"
        " kernels' code and of how the cases start them.",
        "",
        *(f"- {op}: `{digest}`" for op, digest in digests.items()),
    ]
    return "\n".join(lines) + "\n"


def digests_in(document: str) -> dict[str, str]:
    """Those with which `table` ends it."""
    return dict(_DIGEST.findall(document))


def _fields(taken: Resources | None) -> str:
    if taken is None:
        return " | | |"
    return f" {taken.registers} | {taken.shared_bytes:,} | {taken.matrix} |"


def version_text() -> str:
    """How the document names the compiler."""
    return f"with Triton {triton.__version__}"
