"""Which device an engine takes, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import torch

from pagemesh.config import CacheConfig, HardwareConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError
from pagemesh.loading import cuda as device_module
from pagemesh.loading.cuda import choose_device
from pagemesh.loading.engine import load_engine
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
    assert refusal.value.message == (
        "--device is 'cuda', but torch sees no GPU on this machine:"
        f" PyTorch {torch.__version__} is built for CPUs alone"
    )


@pytest.mark.parametrize(
    ("torch_says", "visible", "reason"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
            " by downloading and installing a new version from the URL: http://example/Download",
            None,
            "The NVIDIA driver on your system is too old (found version 11040)",
        ),
        (
            "No CUDA GPUs are available",
            "7",
            "No CUDA GPUs are available (CUDA_VISIBLE_DEVICES is '7')",
        ),
    ],
)
def test_why_torch_sees_no_gpu_is_said(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    torch_says: str,
    visible: str | None,
    reason: str,
) -> None:
    def fail() -> None:
        raise RuntimeError(torch_says)

    monkeypatch.setattr(device_module, "visible_capability", lambda: None)
    monkeypatch.setattr(device_module, "_DRIVER_FILE", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError) as refusal:
        choose_device(HardwareConfig("cuda"), CacheConfig())
    assert refusal.value.message.endswith(f"on this machine: {reason}")
    with structlog.testing.capture_logs() as logs:
        assert choose_device(HardwareConfig(), CacheConfig()) == CPU
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [("warning", reason)]


def test_a_cpu_that_computes_alone_is_nothing_to_warn_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: None)
    with structlog.testing.capture_logs() as logs:
        monkeypatch.setattr(device_module, "_DRIVER_FILE", tmp_path / "none")
        assert choose_device(HardwareConfig(), CacheConfig()) == CPU
        monkeypatch.setattr(device_module, "_DRIVER_FILE", tmp_path)
        assert choose_device(HardwareConfig("cpu"), CacheConfig()) == CPU
    assert logs == []


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_gpu_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: (7, 5))
    with pytest.raises(ConfigError) as refusal:
        choose_device(HardwareConfig(asked), CacheConfig())  # type: ignore[arg-type]
    assert refusal.value.message == (
        "this machine's GPU has compute capability 7.5, but the kernels are for 8.0 and later;"
        " --device cpu does without"
    )


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


def test_int8_kv_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "visible_capability", lambda: (9, 0))
    with pytest.raises(ConfigError) as refusal:
        choose_device(HardwareConfig(), CacheConfig(kv_cache_dtype="int8"))
    assert refusal.value.message == (
        "--kv-cache-dtype is 'int8', but must be auto or fp8 on a GPU, whose kernels have no int8"
    )


def test_kv_is_of_the_models_type_or_of_8_bits() -> None:
    assert choose_kv_dtype("auto", "bfloat16", "cuda") == "bfloat16"
    assert choose_kv_dtype("fp8", "bfloat16", "cuda") == "float8_e4m3fn"
    assert choose_kv_dtype("fp8", "bfloat16", "cpu") == "float8_e4m3fn"
    assert choose_kv_dtype("int8", "bfloat16", "cpu") == "int8"
    assert choose_kv_dtype("int8_per_token_head", "float32", "cpu") == "int8"
    assert choose_kv_dtype("fp8_e4m3", "float16", "cuda") == "float8_e4m3fn"
    with pytest.raises(ConfigError, match="'fp8', but must be auto for an encoder"):
        choose_kv_dtype("fp8", "float32", "cuda", causal=False)
    with pytest.raises(ConfigError, match="'int8', but must be auto for an encoder"):
        choose_kv_dtype("int8", "float32", "cpu", causal=False)


def test_an_encoder_has_no_use_for_swap_space(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    with pytest.raises(ConfigError) as refusal:
        load_engine(ModelConfig(str(tmp_path)), CacheConfig(swap_space=0.5), SchedulerConfig())
    assert refusal.value.message == (
        "--swap-space is 0.5, but must be 0 for an encoder, which keeps no KV"
    )
