"""How many blocks a GPU has room for, from what was measured on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.sizing.gpu_budget import GpuReading, GpuUse, fit_blocks, runtime_bytes

GIB, MIB = 2**30, 2**20
# Llama 3 8B in bfloat16: 2 MiB for 16 tokens.
LAYOUT = KvLayout.uniform(
    block_size=16, num_layers=32, num_kv_heads=8, head_dim=128, dtype="bfloat16"
)
USE = GpuUse(
    total=80 * GIB,
    free=62 * GIB,
    model=16 * GIB,
    activations=2 * GIB,
    kept=1 * GIB,
    runtime=1 * GIB,
)


def test_kv_gets_what_is_left_of_the_share() -> None:
    assert LAYOUT.num_bytes == 2 * MIB
    # 0.9 of 80 GiB are 72, of which 20 are taken.
    assert fit_blocks(USE, LAYOUT, 8192, 0.9, None) == 52 * 512
    assert fit_blocks(USE, LAYOUT, 8192, 0.5, None) == 20 * 512


def test_kv_of_8_bits_has_twice_the_blocks() -> None:
    small = replace(LAYOUT, dtype="float8_e4m3fn")
    assert fit_blocks(USE, small, 8192, 0.5, None) == 2 * 20 * 512


def test_a_size_that_is_asked_for_is_no_share() -> None:
    assert fit_blocks(USE, LAYOUT, 8192, 0.1, 3.5) == 1792


def test_a_request_that_does_not_fit_is_refused_with_all_figures() -> None:
    with pytest.raises(ConfigError) as refusal:
        fit_blocks(USE, LAYOUT, 131_072, 0.35, None)
    assert refusal.value.message == (
        "of this GPU's 80.00 GiB, 28.00 GiB may be used (--gpu-memory-utilization 0.35): 16.00 GiB model,"
        " 2.00 GiB activations (--max-num-batched-tokens, --max-num-seqs), 1.00 GiB buffers and CUDA graphs"
        " (--max-num-seqs, --enforce-eager), 1.00 GiB runtime leave 8.00 GiB for KV, which is 65536 tokens,"
        " but a request of --max-model-len 131072 needs 16.00 GiB"
    )


def test_a_model_that_does_not_fit_leaves_less_than_nothing() -> None:
    with pytest.raises(ConfigError, match=r"leave -12\.00 GiB for KV, which is 0 tokens"):
        fit_blocks(USE, LAYOUT, 2048, 0.1, None)


def test_too_little_that_is_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        fit_blocks(USE, LAYOUT, 8192, 0.9, 0.5)
    assert refusal.value.message == (
        "--kv-cache-memory 0.5 GiB holds the KV of 4096 tokens, but a request of --max-model-len 8192"
        " needs 1.00 GiB"
    )


@pytest.mark.parametrize(
    ("utilization", "asked", "flag"),
    [(0.9, None, "--gpu-memory-utilization"), (0.9, 52.0, "--kv-cache-memory")],
)
def test_what_others_hold_is_not_given_away(
    utilization: float, asked: float | None, flag: str
) -> None:
    use = replace(USE, free=30 * GIB)
    with pytest.raises(ConfigError) as refusal:
        fit_blocks(use, LAYOUT, 8192, utilization, asked)
    assert refusal.value.message == (
        "52.00 GiB of KV cache do not fit this GPU of 80.00 GiB: 30.00 GiB are free beside the model, of"
        f" which the largest step takes 3.00 GiB. Others on the GPU have the rest: lower {flag}"
    )
    # Just what is there.
    assert fit_blocks(replace(USE, free=55 * GIB), LAYOUT, 8192, utilization, asked) == 52 * 512


def test_the_runtime_is_what_the_device_lost_outside_torch() -> None:
    before = GpuReading(free=60 * GIB, reserved=16 * GIB)
    # Torch reserved 4 GiB more, but the device lost 5.
    after = GpuReading(free=55 * GIB, reserved=20 * GIB)
    assert runtime_bytes(80 * GIB, before, after) == GIB + GIB // 2
    # Nothing else was loaded, or others have left: the context is there all the same.
    unchanged = GpuReading(free=56 * GIB, reserved=20 * GIB)
    assert runtime_bytes(80 * GIB, before, unchanged) == GIB * 6 // 10
    assert runtime_bytes(80 * GIB, before, GpuReading(75 * GIB, 16 * GIB)) == GIB * 6 // 10
