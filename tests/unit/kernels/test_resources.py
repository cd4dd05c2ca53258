"""Every kernel compiles for every GPU, takes what the committed table says, and no more than there is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.jit import JITFunction

from pagemesh.kernels.launch import Launch, noting
from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm
from pagemesh.kernels.target import TARGETS, playing, target_of
from tools.kernel_loops import copies_in_flight
from tools.kernel_signature import signature_of
from tools.kernel_table import Resources, Variant, defects, digests_in, document

ROOT = Path(__file__).resolve().parents[3]
TAKEN = Resources(registers=32, shared_bytes=1024, spilled_bytes=0, matrix="wgmma", in_flight=None)


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


def test_the_tables_are_of_these_kernels() -> None:
    assert complaints("--stale", 120) == ""


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_kernels_take_what_the_tables_say() -> None:
    assert complaints("--check", 3500) == ""


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


def test_spills_too_much_shared_memory_and_waits_for_everything_are_defects() -> None:
    launch = noted_launch()
    variants = [
        Variant("rms_norm", "of 24", TARGETS[capability], launch) for capability in (86, 90)
    ]
    good = [TAKEN, TAKEN._replace(spilled_bytes=32, in_flight=1)]
    assert defects(variants, {"3.7.1": good}) == []
    bad = [TAKEN._replace(shared_bytes=101_377), TAKEN._replace(spilled_bytes=36, in_flight=0)]
    assert defects(variants, {"3.7.1": good, "3.6.0": bad}) == [
        "rms_norm_kernel (rms_norm: of 24) on sm_86 with Triton 3.6.0 wants 101377 bytes of shared memory,"
        " but a program has at most 101376",
        "rms_norm_kernel (rms_norm: of 24) on sm_90 with Triton 3.6.0 spills 36 bytes of registers",
        "rms_norm_kernel (rms_norm: of 24) on sm_90 with Triton 3.6.0 waits in its loop for all that it loads",
    ]
    known = variants[1]._replace(
        launch=launch._replace(kernel=SimpleNamespace(__name__="draw_kernel"))
    )
    spilled = [TAKEN._replace(spilled_bytes=44)]
    assert defects([known], {"3.6.0": spilled}) == []
    assert len(defects([known], {"3.7.1": spilled})) == 1
    long = variants[1]._replace(launch=launch._replace(arguments={"BLOCK_T": 256}))
    assert defects([long], {"3.7.1": [TAKEN._replace(spilled_bytes=640)]}) == []
    assert len(defects([long], {"3.7.1": [TAKEN._replace(spilled_bytes=644)]})) == 1


def test_the_tables_have_a_row_for_each_kernel_of_a_case() -> None:
    launch = noted_launch()
    variants = [Variant("rms_norm", "of 24", TARGETS[c], launch) for c in (80, 100)]
    newer = [TAKEN, TAKEN._replace(in_flight=2)]
    older = [TAKEN, TAKEN._replace(registers=30, spilled_bytes=8, in_flight=2)]
    text = document(variants, {"3.7.1": newer, "3.6.0": older}, {"rms_norm": "1f"})
    assert digests_in(text) == {"rms_norm": "1f"}
    assert "with Triton 3.7.1 and 3.6.0" in text
    assert [line for line in text.splitlines() if "of 24" in line] == [
        "| rms_norm | `rms_norm_kernel` | of 24 | 1 | 32 |  | 1,024 |  | wgmma |",
        "| rms_norm | `rms_norm_kernel` | of 24 | 1 | 32 · 30 | 0 · 8 | 1,024 | 2 | wgmma |",
    ]


def test_how_far_a_loop_loads_ahead_is_read_from_its_waits() -> None:
    ptx = """
        cp.async.wait_group 0;
    $L__BB0_1:
    $L__BB0_2:
        cp.async.wait_group {first};
        mma.sync;
        cp.async.wait_group {second};
        @%p1 bra $L__BB0_2;
        cp.async.wait_group 0;
        @%p2 bra $L__BB0_1;
        bra.uni $L__BB0_3;
    $L__BB0_3:
        cp.async.wait_group 0;
        ret;
    """
    loop = textwrap.dedent(ptx)
    assert copies_in_flight(loop.format(first=4, second=2)) == 2
    assert copies_in_flight(loop.format(first=0, second=2)) == 0
    assert copies_in_flight("cp.async.wait_group 0;\nret;") is None
