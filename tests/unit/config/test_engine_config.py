"""Settings of cache and scheduler that cannot be are refused by name, and odd ones that can are not."""

from typing import Any

import pytest

from pagemesh.config import CacheConfig, HardwareConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import num_swap_blocks_for
from pagemesh.errors import ConfigError
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import Stepper, make_info, make_request

LAYOUT = KvLayout.uniform(
    block_size=16, num_layers=4, num_kv_heads=4, head_dim=64, dtype="bfloat16"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": -1}, "--max-num-seqs is -1, but must be 0 or more"),
        ({"max_num_batched_tokens": -1}, "--max-num-batched-tokens is -1, but must be 0 or more"),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            "--max-num-batched-tokens is 7, but must be at least --max-num-seqs, 8: a decode of every"
            " running request must fit into a step",
        ),
    ],
)
def test_limits_of_a_step_that_cannot_be_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        SchedulerConfig(**settings)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("given", "on_cpu", "on_gpu"),
    [
        ({}, (64, 512), (256, 8192)),
        ({"max_num_seqs": 10}, (10, 512), (10, 8192)),
        ({"max_num_seqs": 10_000}, (10_000, 10_000), (10_000, 10_000)),
        ({"max_num_batched_tokens": 128}, (64, 128), (128, 128)),
        ({"max_num_batched_tokens": 8}, (8, 8), (8, 8)),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 40}, (3, 40), (3, 40)),
    ],
)
def test_limits_that_are_not_given_are_the_devices(
    given: dict[str, int], on_cpu: tuple[int, int], on_gpu: tuple[int, int]
) -> None:
    for device, expected in (("cpu", on_cpu), ("cuda", on_gpu)):
        filled = SchedulerConfig(**given, step_timeout=7.0).on(device)  # type: ignore[arg-type]
        assert (filled.max_num_seqs, filled.max_num_batched_tokens) == expected
        assert (filled.step_timeout, filled.on(device)) == (7.0, filled)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "--block-size is 0, but must be positive"),
        ({"swap_space": -1.0}, "--swap-space is -1.0, but must be 0 or more GiB"),
        ({"kv_cache_memory": 0.0}, "--kv-cache-memory is 0.0, but must be positive"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        CacheConfig(**settings)  # type: ignore[arg-type]
    assert str(refusal.value) == message


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_of_a_gpu_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        HardwareConfig(gpu_memory_utilization=share)
    assert str(refusal.value) == (f"--gpu-memory-utilization is {share}, but must be in (0, 1]")


def test_a_swap_space_holds_whole_blocks() -> None:
    assert LAYOUT.num_bytes == 65_536
    assert num_swap_blocks_for(LAYOUT, 0.0) == 0
    assert num_swap_blocks_for(LAYOUT, 0.01) == 163
    with pytest.raises(ConfigError, match=r"--swap-space is 1e-05 GiB, but one block .* 0\.000061"):
        num_swap_blocks_for(LAYOUT, 1e-5)


@pytest.mark.parametrize("block_size", [1, 7, 8, 13, 16, 32])
@pytest.mark.parametrize("budget", [3, 5, 64], ids=lambda budget: f"{budget} tokens")
def test_any_block_size_goes_with_any_budget(block_size: int, budget: int) -> None:
    num_blocks = -(-128 // block_size)
    stepper = Stepper(
        make_info(num_blocks, block_size, max_model_len=64), max_num_batched_tokens=budget
    )
    for name, length in (("a", 33), ("b", 16), ("c", 1)):
        stepper.submit(make_request(name, length, max_tokens=20))
    stepper.run()
    for name, length in (("a", 33), ("b", 16), ("c", 1)):
        prompt = make_request(name, length).prompt_token_ids
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, 20)
    assert stepper.num_free_blocks == num_blocks
