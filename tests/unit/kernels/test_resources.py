"""Every kernel compiles for every GPU, takes what the committed table says, and no more than there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.runtime.jit import JITFunction

from pagemesh.kernels.launch import Launch, noting
from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm
from pagemesh.kernels.target import TARGETS, playing, target_of
from tools.kernel_signature import signature_of
from tools.kernel_table import Resources, Variant, defects, digests_in, table

ROOT = Path(__file__).resolve().parents[3]
TAKEN = Resources(registers=32, shared_bytes=1024, spilled_bytes=0, matrix="wgmma")


def noted_launch() -> Launch:
    """RMSNorm of a tensor whose rows have 24 elements and lie 32 apart, from the first but one on."""
    norm = CudaRmsNorm(torch.ones(24), 1e-6)
    rows = torch.ones(3, 32, dtype=torch.bfloat16)[1:, :24]
    with noting() as launches:
        norm(rows)
    (launch,) = launches
    return launch


def complaints(check: str, deadline_s: float) -> str:
    """What a check of the table complains of, in a process in which kernels are for a compiler."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.kernel_resources", check],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_table_is_of_these_kernels() -> None:
    assert complaints("--stale", 120) == ""


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_kernels_take_what_the_table_says() -> None:
    assert complaints("--check", 1700) == ""


def test_nothing_is_started_while_starts_are_noted() -> None:
    launch = noted_launch()
    assert launch.kernel.__name__ == "rms_norm_kernel"
    assert launch.grid == (2,)
    assert launch.options == {
        "num_warps": 1,
        "num_stages": 3,
        "enable_fp_fusion": False,
        # In the interpreter there is one kernel at a time.
        "launch_pdl": False,
    }


def test_signatures_say_what_a_launcher_would_find() -> None:
    launch = noted_launch()
    # In this process kernels may be the interpreter's, which know less of their parameters.
    signature = signature_of(launch._replace(kernel=JITFunction(launch.kernel.fn)))
    assert signature.types == {
        "rows": "*bf16",
        "row_stride": "i32",
        "weight": "*fp32",
        "residual": "constexpr",
        "residual_stride": "i32",
        "output": "*bf16",
        "size": "i32",
        "eps": "fp32",
        "BLOCK": "constexpr",
        "EARLY": "constexpr",
    }
    assert signature.constants == {(3,): None, (8,): 32, (9,): False}
    # All pointers, the stride of 32 and the stride of 0 that nobody uses; the size of 24 is not.
    assert sorted(signature.attributes) == [(0,), (1,), (2,), (4,), (5,)]


def test_a_target_is_played_where_there_is_no_gpu() -> None:
    cpu = torch.device("cpu")
    assert target_of(cpu).capability == 90
    with playing(TARGETS[80]):
        assert target_of(cpu).shared_bytes == 166_912
    assert target_of(cpu).capability == 90


def test_spills_and_too_much_shared_memory_are_defects() -> None:
    launch = noted_launch()
    first, second = (
        Variant("rms_norm", "of 24", TARGETS[capability], launch) for capability in (80, 90)
    )
    assert defects([(first, TAKEN), (second, TAKEN._replace(spilled_bytes=32))]) == []
    assert defects(
        [
            (first, TAKEN._replace(shared_bytes=166_913)),
            (second, TAKEN._replace(spilled_bytes=36)),
        ]
    ) == [
        "rms_norm_kernel (rms_norm: of 24) on sm_80 wants 166913 bytes of shared memory,"
        " but a program has at most 166912",
        "rms_norm_kernel (rms_norm: of 24) on sm_90 spills 36 bytes of registers",
    ]
    long = second._replace(launch=launch._replace(arguments={"BLOCK_T": 256}))
    assert defects([(long, TAKEN._replace(spilled_bytes=640))]) == []
    assert len(defects([(long, TAKEN._replace(spilled_bytes=644))])) == 1


def test_the_table_has_a_row_for_each_kernel_of_a_case() -> None:
    launch = noted_launch()
    variants = [Variant("rms_norm", "of 24", TARGETS[c], launch) for c in (80, 100)]
    document = table([(v, TAKEN) for v in variants], {"rms_norm": "1f"})
    assert digests_in(document) == {"rms_norm": "1f"}
    (row,) = (line for line in document.splitlines() if "of 24" in line)
    assert row == (
        "| rms_norm | `rms_norm_kernel` | of 24 | 1 | 32 | 1,024 | wgmma | | | | 32 | 1,024 | wgmma |"
    )
