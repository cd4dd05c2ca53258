"""What fits into a host or its GPUs: KV, a context, and whether a worker more would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.memory import Fit, fit_gpus, fit_host
from pagemesh.config import CacheConfig, HardwareConfig, SchedulerConfig
from pagemesh.errors import ConfigError
from pagemesh.sizing.machine import MachineMemory

GIB = 2**30
# A Llama of 7 billion parameters, 13.5 GB in 16 bits, with 0.5 MiB of KV for each token.
LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


@pytest.fixture
def llama(tmp_path: Path) -> str:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_7B))
    return str(folder)


def settings(model: str, prefill: int = 0, **others: Any) -> UpConfig:
    return UpConfig(model=(model,), prefill=prefill, **others)


def host(total: float, available: float | None = None) -> MachineMemory:
    return MachineMemory(int(total * GIB), int((available or total) * GIB))


def test_7b_in_16_bits_fit_on_24_gb(llama: str) -> None:
    fit = fit_gpus(settings(llama), int(23.6 * GIB), num_gpus=1)
    assert fit == Fit(), "with its whole context"
    assert fit_host(settings(llama), host(24)).kv_cache_memory is not None


def test_on_a_host_a_worker_more_costs_no_weights(llama: str) -> None:
    alone = fit_host(settings(llama), host(64, 40)).kv_cache_memory
    both = fit_host(settings(llama, prefill=1), host(64, 40)).kv_cache_memory
    assert alone is not None
    assert both is not None
    assert 0.95 * alone < 2 * both < alone, "both have together little less than one"


def test_kv_is_half_of_what_the_models_leave_free(llama: str) -> None:
    alone = fit_host(settings(llama), host(64, 40)).kv_cache_memory
    assert alone is not None
    assert 13 < alone < 14, "of 40 GiB the model leaves some 27"
    both = fit_host(settings(llama, prefill=1), host(64, 60)).kv_cache_memory
    assert both is not None
    assert 11 < both < 12, "of 60 GiB they leave some 46, for two workers with the same weights"


def test_no_more_kv_is_taken_than_requests_can_use(llama: str) -> None:
    few = settings(llama, scheduler=SchedulerConfig(max_num_seqs=2))
    assert fit_host(few, host(400)).kv_cache_memory == 4.0


def test_kv_that_is_asked_for_stays(llama: str) -> None:
    fit = fit_host(settings(llama, cache=CacheConfig(kv_cache_memory=1.0)), host(64))
    # 1 GiB has 2,048 tokens of 0.5 MiB.
    assert fit == Fit(1.0, 2048, 4096)


def test_a_busy_host_leaves_the_least(llama: str) -> None:
    assert fit_host(settings(llama), host(24, 10)) == Fit(0.25, 512, 4096)


def test_the_longest_context_that_fits_a_gpu_is_found(llama: str) -> None:
    small = settings(llama, hardware=HardwareConfig(gpu_memory_utilization=0.9))
    fit = fit_gpus(small, 16 * GIB, num_gpus=1)
    assert fit.own_max_model_len == 4096
    assert fit.max_model_len is not None
    assert 500 < fit.max_model_len < 4000
    assert fit.max_model_len % 16 == 0


def test_what_would_fit_with_one_worker_is_said(llama: str) -> None:
    with pytest.raises(ConfigError, match=r"13\.00 GiB of memory.*with --prefill 0 they would fit"):
        fit_host(settings(llama, prefill=1), host(13))
    with pytest.raises(ConfigError, match=r"1 \+ 1 workers.*with --prefill 0 they would fit"):
        fit_gpus(settings(llama, prefill=1), 24 * GIB, num_gpus=1)
    assert fit_gpus(settings(llama, prefill=1), 24 * GIB, num_gpus=2) == Fit()


def test_what_fits_in_no_way_is_refused_without_a_hint(llama: str) -> None:
    with pytest.raises(ConfigError, match=r"before the first KV block$"):
        fit_host(settings(llama, prefill=1), host(8))
    # A GPU's worker says it with what it measured.
    assert fit_gpus(settings(llama, prefill=1), 8 * GIB, num_gpus=1) == Fit()


def test_of_what_cannot_be_read_nothing_is_said(tmp_path: Path) -> None:
    assert fit_host(settings(str(tmp_path / "none")), host(8)) == Fit()
