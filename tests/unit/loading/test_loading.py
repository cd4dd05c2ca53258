"""Building a real engine from settings."""

from pathlib import Path
from typing import Literal

import pytest
import structlog

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.loading.engine import load_engine
from tests.fakes.inbox import Inbox
from tests.identity.encoder_checkpoints import RECIPES, make_encoder
from tests.unit.scheduler.builders import make_request


def test_the_engine_has_the_blocks_that_fit_into_its_memory(demo_model: Path) -> None:
    cache = CacheConfig(block_size=32, kv_cache_memory=0.125)
    engine = load_engine(ModelConfig(str(demo_model)), cache, SchedulerConfig(max_num_seqs=3))
    layout = KvLayout.uniform(32, num_layers=6, num_kv_heads=4, head_dim=32, dtype="float32")
    assert engine.info.layout == layout
    assert layout.num_bytes == 196_608
    assert engine.info.num_blocks == 2**27 // 196_608 == 682
    assert (engine.info.max_model_len, engine.info.max_num_seqs) == (2048, 3)
    assert engine.load().num_free_blocks == 682
    engine.stop()


def test_a_loaded_engine_answers(demo_model: Path) -> None:
    model = ModelConfig(str(demo_model), max_model_len=64)
    engine = load_engine(model, CacheConfig(kv_cache_memory=0.01), SchedulerConfig())
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 20, max_tokens=3, ignore_eos=True))
    inbox.wait_for_end("a")
    engine.stop()
    assert len(inbox.tokens["a"]) == 3


@pytest.mark.parametrize(("setting", "overlaps"), [("auto", False), ("on", True), ("off", False)])
def test_steps_overlap_on_a_cpu_only_when_asked_for(
    demo_model: Path, setting: Literal["auto", "on", "off"], overlaps: bool
) -> None:
    model, scheduler = ModelConfig(str(demo_model)), SchedulerConfig(async_scheduling=setting)
    with structlog.testing.capture_logs() as logs:
        engine = load_engine(model, CacheConfig(), scheduler)
    (loaded,) = [entry for entry in logs if entry["event"] == "engine loaded"]
    assert loaded["read_seconds"] > 0 <= loaded["measure_seconds"]
    assert engine._loop._overlaps == overlaps
    engine.stop()


@pytest.mark.parametrize("caches", [True, False])
def test_an_engine_knows_whether_it_finds_prompts_again(demo_model: Path, caches: bool) -> None:
    cache = CacheConfig(enable_prefix_caching=caches)
    engine = load_engine(ModelConfig(str(demo_model)), cache, SchedulerConfig())
    assert engine.info.caches_prefixes == caches
    engine.stop()


@pytest.mark.parametrize("way", [None, "int8"])
def test_an_engine_knows_how_its_weights_are_quantised(demo_model: Path, way: str | None) -> None:
    model = ModelConfig(str(demo_model), quantization=way)
    engine = load_engine(model, CacheConfig(), SchedulerConfig())
    assert engine.info.quantization == (way or "")
    engine.stop()


def test_a_cache_too_small_for_one_request_is_refused(demo_model: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_engine(
            ModelConfig(str(demo_model)), CacheConfig(kv_cache_memory=0.001), SchedulerConfig()
        )
    assert refusal.value.message == (
        "--kv-cache-memory 0.001 GiB holds the KV of 160 tokens, but requests may have 2048:"
        " raise --kv-cache-memory to at least 0.012 or lower --max-model-len"
    )


def test_the_memory_that_a_refusal_asks_for_is_enough(demo_model: Path) -> None:
    engine = load_engine(
        ModelConfig(str(demo_model)), CacheConfig(kv_cache_memory=0.012), SchedulerConfig()
    )
    assert engine.info.num_blocks * engine.info.layout.block_size >= 2048
    engine.stop()


def test_a_block_longer_than_any_request_is_refused(demo_model: Path) -> None:
    model = ModelConfig(str(demo_model), max_model_len=10)
    with pytest.raises(ConfigError, match=r"--block-size is 16, but .* at most 10 tokens"):
        load_engine(model, CacheConfig(), SchedulerConfig())


def test_an_encoder_has_the_blocks_of_a_step_and_no_more(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    engine = load_engine(ModelConfig(str(tmp_path)), CacheConfig(), scheduler)
    engine.stop()
    # A step of its longest prompt, 100 tokens, and a partly filled block for each request.
    assert engine.info.num_blocks == 100 // 16 + 4
    assert (engine.info.causal, engine.info.generates) == (False, False)


def test_a_cache_too_small_for_one_prompt_of_an_encoder_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    with pytest.raises(ConfigError, match="requests may have 100: raise --kv-cache-memory"):
        load_engine(
            ModelConfig(str(tmp_path)), CacheConfig(kv_cache_memory=0.00005), SchedulerConfig()
        )
