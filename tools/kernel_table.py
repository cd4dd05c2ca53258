"""The tables of what compiled kernels take, and what none may take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pagemesh.kernels.launch import Launch
from pagemesh.kernels.linear.weight_kernel import Form
from pagemesh.kernels.target import TARGETS, Target

_DIGEST: Final = re.compile(r"^- (\w+): `([0-9a-f]+)`$", re.MULTILINE)
MOST_SPILLED_BYTES: Final = 32
"""Of a thread: some four values that are stored once and loaded again far from the inner loop, where
another version of the compiler is a register short."""

SPILLED_BY_VERSION: Final = {
    ("3.6.0", "attention_kernel"): 40,
    ("3.6.0", "experts_kernel"): 48,
    ("3.6.0", "draw_kernel"): 44,
    ("3.6.0", "choose_kernel"): 72,
}
"""Of a thread, where an older Triton makes more of a kernel; the last two have 16 warps, so 128 registers. Numbers
may only go down."""

MOST_SPILLED_BY_LONG_TILES: Final = 640
"""Of a thread of a matmul whose tiles have 256 tokens: beside the sums of a segment it keeps those of the
segments before, once in thousands of inputs. An H200 is faster with it all the same."""

MOST_SPILLED_BESIDE_SEGMENTS: Final = 240
"""Of a thread of a matmul of floats of 8 bits for gates and ups whose segments one program adds up: it keeps a pair of
sums for the segments before, one for its own, and what tensor cores have just added up."""

_GPUS: Final = {
    80: "A100",
    86: "RTX 3090, A10",
    89: "L4, L40S, RTX 4090",
    90: "H100, H200",
    100: "B200",
}


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
    in_flight: int | None
    """Copies that its loop leaves on their way while it computes, in groups; of several loops the fewest, None where
    no loop waits for copies."""


Compiled = Sequence[Resources]
"""One for each variant, of one version of Triton."""


def defects(variants: Sequence[Variant], found: Mapping[str, Compiled]) -> list[str]:
    """What no kernel may do, with any version of Triton."""
    texts = []
    for version, compiled in found.items():
        for variant, taken in zip(variants, compiled, strict=True):
            name = (
                f"{variant.kernel_name} ({variant.op}: {variant.case}) on sm_{variant.target.capability} with"
                f" Triton {version}"
            )
            if taken.shared_bytes > variant.target.shared_bytes:
                texts.append(
                    f"{name} wants {taken.shared_bytes} bytes of shared memory,"
                    f" but a program has at most {variant.target.shared_bytes}"
                )
            if taken.spilled_bytes > _most_spilled_bytes(variant, version):
                texts.append(f"{name} spills {taken.spilled_bytes} bytes of registers")
            if taken.in_flight == 0:
                texts.append(f"{name} waits in its loop for all that it loads")
    return texts


def _most_spilled_bytes(variant: Variant, version: str) -> int:
    arguments = variant.launch.arguments
    if arguments.get("BLOCK_T") == 256:
        return MOST_SPILLED_BY_LONG_TILES
    form = arguments.get("FORM")
    is_fp8 = isinstance(form, Form) and form.codes == "fp8"
    if is_fp8 and arguments.get("GATE") is not None and arguments.get("SEGMENTS") != 1:
        return MOST_SPILLED_BESIDE_SEGMENTS
    return SPILLED_BY_VERSION.get((version, variant.kernel_name), MOST_SPILLED_BYTES)


def document(
    variants: Sequence[Variant], found: Mapping[str, Compiled], digests: Mapping[str, str]
) -> str:
    """A table for each kind of GPU, with the digests of the kernels that they are of."""
    lines = [
        "# Kernel resources",
        "",
        f"Written by `make kernels`, which compiles each kernel for each GPU ahead of time, {version_text(found)};"
        " `make test-all` compares. Registers, and bytes of them that are spilled, are those of a thread; shared"
        " memory, in bytes, is that of a program. *In flight* are the groups of copies that the kernel's loop leaves"
        " on their way while it computes: none would mean that it loads nothing ahead. Where two versions differ,"
        f" both figures are there. No kernel spills more than {MOST_SPILLED_BYTES} bytes, but matmuls with tiles of"
        f" 256 tokens up to {MOST_SPILLED_BY_LONG_TILES}, those of FP8 with FP8 that add up segments of gates up to"
        f" {MOST_SPILLED_BESIDE_SEGMENTS}, and four kernels up to"
        f" {max(SPILLED_BY_VERSION.values())} with the older Triton. A kernel stands under the first case that needs"
        " it so.",
    ]
    for capability in TARGETS:
        lines += ["", *_table(capability, variants, list(found.values()))]
    lines += [
        "",
        "`make test` compiles nothing, and compares what the tables were made of: by operation, a digest of the"
        " kernels' code and of how the cases start them.",
        "",
        *(f"- {op}: `{digest}`" for op, digest in digests.items()),
    ]
    return "\n".join(lines) + "\n"


def _table(capability: int, variants: Sequence[Variant], found: Sequence[Compiled]) -> list[str]:
    target = TARGETS[capability]
    lines = [
        f"## {capability // 10}.{capability % 10}: {_GPUS[capability]}",
        "",
        f"A program has at most {target.shared_bytes:,} bytes of shared memory.",
        "",
        "| operation | kernel | case | warps | registers | spilled | shared | in flight | matrix |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant, *taken in zip(variants, *found, strict=True):
        if variant.target.capability != capability:
            continue
        fields = [
            variant.op,
            f"`{variant.kernel_name}`",
            variant.case,
            str(variant.launch.options["num_warps"]),
            _field(str(each.registers) for each in taken),
            _field(str(each.spilled_bytes or "") for each in taken),
            _field(f"{each.shared_bytes:,}" for each in taken),
            _field("" if each.in_flight is None else str(each.in_flight) for each in taken),
            _field(each.matrix for each in taken),
        ]
        lines.append(f"| {' | '.join(fields)} |")
    return lines


def _field(texts: Iterable[str]) -> str:
    """One figure where all versions agree."""
    each = list(texts)
    return each[0] if len(set(each)) == 1 else " · ".join(text or "0" for text in each)


def digests_in(text: str) -> dict[str, str]:
    """Those with which `document` ends it."""
    return dict(_DIGEST.findall(text))


def version_text(versions: Iterable[str]) -> str:
    """How the document names the compilers."""
    return f"with Triton {' and '.join(versions)}"
