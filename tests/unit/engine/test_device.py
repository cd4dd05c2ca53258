"""Which device an engine takes, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.engine import device as device_module
from pagemesh.engine.device import choose_device
from pagemesh.engine.loading import load_engine
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_kv_dtype
from tests.identity.encoder_checkpoints import RECIPES, make_encoder

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("asked", "capability", "chosen"),
    [
        ("auto", None, CPU),
        ("auto", (9, 0), GPU),
        ("cpu", (9, 0), CPU),
        ("cuda", (8, 0), GPU),
    ],
)
def test_a_gpu_is_taken_where_there_is_one_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    capability: tuple[int, int] | None,
    chosen: torch.device,
) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: capability)
    assert choose_device(HardwareConfig(asked), CacheConfig()) == chosen  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: None)
    with pytest.raises(ConfigError) as refusal:
        choose_device(HardwareConfig("cuda"), CacheConfig())
    assert refusal.value.message == "--device is 'cuda', but torch sees no GPU on this machine"


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0)])
def test_gpus_that_have_8_bit_floats_take_them_for_kv(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: capability)
    assert choose_device(HardwareConfig(), CacheConfig(kv_cache_dtype="fp8")) == GPU


def test_8_bit_kv_is_refused_on_a_gpu_without_such_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: (8, 0))
    with pytest.raises(ConfigError) as refusal:
        choose_device(HardwareConfig(), CacheConfig(kv_cache_dtype="fp8_e4m3"))
    assert refusal.value.message == (
        "--kv-cache-dtype is 'fp8_e4m3', but must be auto on this GPU: it has compute capability 8.0,"
        " and 8-bit floats begin with 8.9"
    )


def test_8_bit_kv_is_refused_on_a_cpu(demo_model: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_engine(
            ModelConfig(str(demo_model)),
            CacheConfig(kv_cache_dtype="fp8"),
            SchedulerConfig(),
            HardwareConfig("cpu"),
        )
    assert refusal.value.message == (
        "--kv-cache-dtype is 'fp8', but must be auto on a CPU, whose kernels keep KV in the type of the"
        " model"
    )


def test_kv_is_of_the_models_type_or_of_8_bits() -> None:
    assert choose_kv_dtype("auto", "bfloat16", "cuda") == "bfloat16"
    assert choose_kv_dtype("fp8", "bfloat16", "cuda") == "float8_e4m3fn"
    assert choose_kv_dtype("fp8_e4m3", "float16", "cuda") == "float8_e4m3fn"
    with pytest.raises(ConfigError, match="'fp8', but must be auto for an encoder"):
        choose_kv_dtype("fp8", "float32", "cuda", causal=False)


def test_an_encoder_has_no_use_for_swap_space(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    with pytest.raises(ConfigError) as refusal:
        load_engine(ModelConfig(str(tmp_path)), CacheConfig(swap_space=0.5), SchedulerConfig())
    assert refusal.value.message == (
        "--swap-space is 0.5, but must be 0 for an encoder, which keeps no KV"
    )
