"""Compiles one kernel for one GPU, without having any."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tools.kernel_loops import copies_in_flight
from tools.kernel_signature import signature_of
from tools.kernel_table import Resources, Variant

COMPILE_TIMEOUT_S: Final = 300


def compile_variant(variant: Variant) -> Resources:
    """Compile it and read what the assembler says of it."""
    signature = signature_of(variant.launch)
    source = ASTSource(
        variant.launch.kernel, signature.types, signature.constants, signature.attributes
    )
    capability = variant.target.capability
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options=dict(variant.launch.options)
    )
    text = compiled.asm["ptx"]
    report = assemble(text, capability)
    return Resources(
        registers=int(re.findall(r"Used (\d+) registers", report)[0]),
        shared_bytes=compiled.metadata.shared,
        spilled_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", report))),
        matrix=next((kind for kind in ("tcgen05.mma", "wgmma", "mma.sync") if kind in text), ""),
        in_flight=copies_in_flight(text),
    )


def assemble(ptx: str, capability: int) -> str:
    """What ptxas reports of a kernel."""
    architecture = re.findall(r"\.target (sm_\w+)", ptx)[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}"]
        done = subprocess.run(
            [*command, str(path), "-o", str(path.with_suffix(".cubin"))],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=True,
        )
    return done.stderr
