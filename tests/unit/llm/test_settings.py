"""Keyword arguments of `LLM` to settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import CacheConfig, HardwareConfig, HubConfig, ModelConfig, SchedulerConfig
from pagemesh.errors import ConfigError
from pagemesh.llm.settings import OfflineSettings, read_settings


def test_settings_find_their_areas() -> None:
    settings = {"dtype": "bfloat16", "block_size": 8, "kv_cache_memory": 1, "max_num_seqs": 3}
    settings |= {"device": "cuda", "gpu_memory_utilization": 0.5, "enforce_eager": True}
    settings |= {"kv_cache_dtype": "fp8"}
    assert read_settings("org/model", settings) == OfflineSettings(
        ModelConfig("org/model", dtype="bfloat16"),
        CacheConfig(block_size=8, kv_cache_memory=1.0, kv_cache_dtype="fp8"),
        SchedulerConfig(max_num_seqs=3),
        HardwareConfig("cuda", 0.5, True),
    )


def test_a_model_may_be_a_path() -> None:
    assert read_settings(Path("models/demo"), {}).model.model == "models/demo"


def test_settings_of_an_area_in_an_area_are_given_like_all_others() -> None:
    hub = read_settings("org/model", {"revision": "v2", "download_dir": "/models"}).model.hub
    assert hub == HubConfig(revision="v2", download_dir="/models")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(
        ConfigError, match="LLM has no setting 'max_seqs'; there are async_scheduling, "
    ):
        read_settings("m", {"max_seqs": 3})


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("max_num_seqs", -1, "--max-num-seqs is -1, but must be 0 or more"),
        ("max_num_seqs", "3", "max_num_seqs is '3': Input should be a valid integer"),
        ("max_num_seqs", True, "max_num_seqs is True: Input should be a valid integer"),
        ("dtype", "int3", "dtype is 'int3': Input should be 'auto', "),
        ("enable_prefix_caching", 1, "enable_prefix_caching is 1: Input should be a valid bool"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings("m", {name: value})
    assert refusal.value.message.startswith(complaint)
