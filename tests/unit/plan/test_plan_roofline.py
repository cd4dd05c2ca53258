"""Estimated rates: sums by hand, and what a real worker took on a core whose limits are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemesh.kernels.target import TARGETS
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec
from pagemesh.plan.roofline import Device, estimate, work_of
from pagemesh.plan.settings import GPUS
from pagemesh.sim.model import read_model

ROOT = Path(__file__).resolve().parents[3]
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
HEAD = 4096 * 128256


def spec_of(folder: Path) -> DecoderSpec:
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    return architecture.make_spec(settings)


@pytest.fixture
def llama(tmp_path: Path) -> DecoderSpec:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return spec_of(tmp_path)


def test_the_work_of_8_billion_parameters(llama: DecoderSpec) -> None:
    work = work_of(llama, 2, 131072)
    assert work.flops_per_token == 2 * 32 * LAYER
    assert work.flops_per_output == 2 * (32 * LAYER + HEAD)
    assert work.flops_per_pair == 2 * 2 * 32 * 4096
    # The embedding table is looked up, not read.
    assert work.weight_bytes == 2 * (32 * LAYER + HEAD)
    assert work.kv_bytes_per_token == 131072


def test_what_stays_quantised_is_read_as_it_is_kept(llama: DecoderSpec) -> None:
    dense = work_of(llama, 2, 131072)
    gates_and_ups, in_4_bits = 2 * 4096 * 14336, 4096 * 14336 * 9 // 8
    packed = {f"layers.{n}.up.weight": in_4_bits for n in range(32)} | {"lm_head": HEAD}
    work = work_of(llama, 2, 131072, packed)
    saved = 32 * (2 * gates_and_ups - in_4_bits) + HEAD
    assert work == dense._replace(weight_bytes=dense.weight_bytes - saved)


def test_only_the_experts_of_a_token_compute_but_all_are_read(tmp_path: Path) -> None:
    mixtral = LLAMA_8B | {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(mixtral))
    work = work_of(spec_of(tmp_path), 2, 131072)
    expert, router = 3 * 4096 * 14336, 4096 * 8
    rest = LAYER - expert + router
    assert work.flops_per_token == 2 * 32 * (rest + 2 * expert)
    assert work.weight_bytes == 2 * (32 * (rest + 8 * expert) + HEAD)


def test_steps_take_what_they_compute_and_what_they_read(llama: DecoderSpec) -> None:
    rates = estimate(work_of(llama, 2, 131072), Device(100e12, 1e12))
    prefill, decode = rates
    assert prefill.seconds_per_token == pytest.approx(139.6e-6, rel=1e-3)
    assert prefill.seconds_per_pair == pytest.approx(5.24e-9, rel=1e-3)
    assert prefill.seconds_per_step == pytest.approx(15.01e-3, rel=1e-3)
    assert decode.seconds_per_sequence == pytest.approx(150.1e-6, rel=1e-3)
    assert decode.seconds_per_pair == pytest.approx(131.07e-9, rel=1e-3)
    assert decode.seconds_per_step == pytest.approx(15.01e-3, rel=1e-3)


def test_prompts_of_the_demo_model_took_what_the_estimate_says() -> None:
    # numpy's product of two matrices of 1024 x 1024 in float32, and a sum of 256 MiB, on one core of the machine
    # that the rates are of; 0.6 is the default of --gpu-efficiency.
    core = Device(0.6 * 130e9, 0.6 * 24e9)
    estimated = estimate(work_of(spec_of(ROOT / "models/demo"), 4, 6144), core).prefill
    measured = read_model(str(ROOT / "docs/examples/demo_rates.yaml")).decode.prefill
    assert 0.7 < estimated.seconds_per_token / measured.seconds_per_token < 1.4


def test_the_example_rates_are_those_that_were_measured() -> None:
    figures = json.loads((ROOT / "benchmarks/results/sim_check.json").read_text())["figures"]
    prefix = "prefixes, kv_aware: rate, "
    rates = {
        each["name"].removeprefix(prefix): each["value"] / 1000
        for each in figures
        if each["name"].startswith(prefix)
    }
    model = read_model(str(ROOT / "docs/examples/demo_rates.yaml"))
    prefill, decode = model.decode.prefill, model.decode.decode
    assert {
        "a prompt's token": prefill.seconds_per_token,
        "a pair": prefill.seconds_per_pair,
        "a step with prompts": prefill.seconds_per_step,
        "a step of decodes": decode.seconds_per_step,
        "a sequence": decode.seconds_per_sequence,
        "the router": model.router_seconds,
        "a way to a worker": model.network_seconds,
    } == pytest.approx(rates, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_gpus_have_the_units_of_their_table(name: str) -> None:
    gpu = next(figures for key, figures in GPUS.items() if key == name)
    assert 10 < gpu.memory < 300
    assert 50 < gpu.tflops < 5000
    assert 200 < gpu.bandwidth < 10_000
    assert 10 * gpu.capability[0] + gpu.capability[1] in TARGETS
    assert gpu.source.startswith("NVIDIA ")
