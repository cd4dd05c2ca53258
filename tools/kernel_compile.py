"""Compiles kernels for GPUs without having any, by the Triton that is installed or by another one."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tools.fetched import fetched
from tools.kernel_loops import copies_in_flight
from tools.kernel_signature import signature_of
from tools.kernel_table import Resources, Variant

COMPILE_TIMEOUT_S: Final = 300
COMPILE_ALL_TIMEOUT_S: Final = 3600

ROOT: Final = Path(__file__).resolve().parent.parent


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


_work: list[Variant] = []


def _compile_number(number: int) -> Resources:
    return compile_variant(_work[number])


def compile_all(found: list[Variant]) -> list[Resources]:
    """Compile them on all cores. Kernels do not travel between processes, so workers are forked."""
    _work[:] = found
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        return list(pool.map(_compile_number, range(len(found))))


def as_json(compiled: Sequence[Resources]) -> str:
    """For `compile_with`, in another process."""
    return json.dumps([taken._asdict() for taken in compiled])


def compile_with(requirement: str, ops: Sequence[str]) -> list[Resources]:
    """The same with another Triton, in a process of its own."""
    paths = [str(fetched(requirement)), str(ROOT), *sys.path]
    options = [word for op in ops for word in ("--op", op)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.kernel_resources", "--json", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        timeout=COMPILE_ALL_TIMEOUT_S,
        check=True,
    )
    return [Resources(**taken) for taken in json.loads(done.stdout)]
