"""`pagemesh plan` with traffic: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pagemesh.cli.main import main

pytestmark = pytest.mark.costly

ROOT = Path(__file__).resolve().parents[3]
RATES = str(ROOT / "docs/examples/demo_rates.yaml")
QUICK: tuple[str, ...] = ("--request-rate", "5", "--num-prompts", "40", "--prefix-tokens", "200")
QUICK += ("--prompt-tokens", "60", "--output-tokens", "8", "--goodput", "ttft:2000", "tpot:100")
CPU = ("--memory", "1", "--rates", RATES)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


def test_the_table_has_the_memory_and_then_the_deployment(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(demo_model), *CPU, *QUICK]) == 0
    printed = capsys.readouterr()
    memory, deployment = printed.out.split("requests/s of", 1)
    assert "118528 tokens in 7408 blocks of 16" in memory
    assert f"rates: measured, of {RATES}\n" in deployment
    assert (
        "  workers                 2 decode   1 decode are enough; 1 decode may fail\n"
        in deployment
    )
    assert deployment.endswith("\n\nFewer workers there are not.\n")
    assert "1 decode: 100.0% good; simulated in " in printed.err


def test_estimated_rates_are_said_to_be_estimated(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", llama, "--gpu", "l4", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "rates: 60% of 121 TFLOP/s and 300 GB/s (NVIDIA L4 data sheet)\n" in printed
    assert "note: The rates are estimated, not measured" in printed


def test_given_figures_win_over_the_data_sheet(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--gpu", "l4", "--gpu-tflops", "50", "--gpu-memory", "10", "--gpu-efficiency", "0.5")
    assert main(["plan", llama, *flags, *QUICK, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["per_device"]["usable_bytes"] == 9 * 2**30
    rates = answer["deployment"]["rates"]
    assert rates["source"].startswith("50% of 50 TFLOP/s and 300 GB/s")
    # 4 layers of 4 * 1024 * 1024 + 3 * 1024 * 4096 weights and 2 norms.
    flops = 2 * 4 * (16 * 1024 * 1024 + 2 * 1024)
    assert rates["model"]["decode"]["prefill"]["seconds_per_token"] == pytest.approx(flops / 25e12)


def test_estimates_know_that_quantised_weights_are_read_sooner(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for way in ((), ("--quantization", "int8"), ("--quantization", "int4")):
        assert main(["plan", llama, "--gpu", "l4", *way, *QUICK, "--json"]) == 0
        model = json.loads(capsys.readouterr().out)["deployment"]["rates"]["model"]
        seconds.append(model["decode"]["decode"]["seconds_per_step"])
    # 67 million numbers in layers; 33 million in the head, which has 8 bits in both ways.
    assert seconds[1] / seconds[0] == pytest.approx(0.51, abs=0.01)
    assert seconds[2] / seconds[0] == pytest.approx(0.38, abs=0.01)


def test_several_gpus_are_planned_but_said_not_to_be_served(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--gpu", "l4", "--tensor-parallel-size", "2", *QUICK)
    assert main(["plan", llama, *flags]) == 0
    printed = capsys.readouterr().out
    assert "note: Workers of 2 devices are not served yet: an engine uses one." in printed
    assert "  devices                        4\n" in printed
    assert main(["plan", llama, *flags, "--values", llama + "/values.yaml"]) == 1
    assert "--tensor-parallel-size is 2, but must be 1 with --values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spare", "meanwhile"), [("0", "the SLO may be missed"), ("1", "a spare one is missing")]
)
def test_values_for_gpus_have_the_hosts_memory_and_updates_without_a_further_gpu(
    llama: str, tmp_path: Path, spare: str, meanwhile: str
) -> None:
    file = tmp_path / "values.yaml"
    flags = ("--gpu", "l4", "--spare", spare, *QUICK, "--values", str(file))
    assert main(["plan", llama, *flags]) == 0
    text = file.read_text()
    decode = yaml.safe_load(text)["decode"]
    # 0.25 GiB of weights count as one.
    assert decode["resources"]["limits"] == {"memory": "9Gi"}
    assert (decode["maxSurge"], decode["maxUnavailable"]) == (0, 1)
    assert f"So pods are replaced one by one, and {meanwhile} meanwhile." in text
    assert "extraArgs" not in decode


def test_values_have_the_way_in_which_workers_quantise(llama: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    flags = ("--gpu", "l4", "--quantization", "int4", *QUICK, "--values", str(file))
    assert main(["plan", llama, *flags]) == 0
    (model,) = yaml.safe_load(file.read_text())["models"]
    assert model["quantization"] == "int4"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--request-rate", "0"), "--request-rate is 0.0, but must be from 0.001 to 1,000,000"),
        (("--request-rate", "nan"), "--request-rate is nan, but must be from"),
        (("--values", "v.yaml"), "--request-rate is None, but must be given, or --trace, with"),
        (("--spare", "2"), "--request-rate is None, but must be given, or --trace, with"),
        (("--request-rate", "1", "--goodput-share", "1.1"), "--goodput-share is 1.1, but must be"),
        (("--request-rate", "1", "--goodput", "itl:5"), "--goodput is 'itl:5', but must be name:"),
        (("--request-rate", "1", "--prefill-ratios", "-1"), "--prefill-ratios is -1.0, but must"),
        (("--request-rate", "1", "--prefill-ratios"), "--prefill-ratios is (), but must be one"),
        (("--request-rate", "1", "--max-workers", "0"), "--max-workers is 0, but must be from 1"),
        (("--request-rate", "1", "--spare", "-1"), "--spare is -1, but must be from 0 to 1,000"),
        (("--request-rate", "1", "--plan-timeout", "0"), "--plan-timeout is 0.0, but must be more"),
        (("--gpu-efficiency", "0"), "--gpu-efficiency is 0.0, but must be more than 0 and at most"),
        (("--gpu-tflops", "inf"), "--gpu-tflops is inf, but must be positive"),
        (("--gpu-bandwidth", "-1"), "--gpu-bandwidth is -1.0, but must be positive"),
        (("--gpu", "h100", "--memory", "1"), "--memory is 1.0, but must be unset when --gpu is"),
        (("--gpu", "tpu"), "invalid choice 'tpu' for argument '--gpu'"),
    ],
)
def test_bad_settings_are_one_sentence_and_exit_code_2(
    demo_model: Path, flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(demo_model), *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"pagemesh plan: {sentence}")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "--memory is None, but must be given for a deployment, or --gpu or --gpu-memory"),
        (("--memory", "1"), "--rates is None, but must be given for a CPU: estimates are for GPUs"),
        (("--memory", "1", "--rates", "none"), "--rates is 'none': No such file or directory"),
        (("--memory", "0.3", "--rates", RATES), "The model does not fit: 22.3 MiB are missing"),
        (
            ("--memory", "0.341", "--rates", RATES),
            "a worker has room for the KV of 1,744 tokens, but one request has up to 2,048",
        ),
        (("--gpu", "h100"), "--gpu-tflops is None, but must be given, or --rates, for a model in"),
        (
            ("--gpu-memory", "2", "--dtype", "bfloat16"),
            "--rates is None, but must be given, or --gpu, or --gpu-tflops and --gpu-bandwidth",
        ),
        (
            ("--memory", "1", "--rates", RATES, "--values", "/none/v.yaml"),
            "--values is '/none/v.yaml': No such file or directory",
        ),
        (
            ("--memory", "1", "--rates", RATES, "--trace", "none"),
            "--trace is 'none': No such file or directory",
        ),
    ],
)
def test_what_cannot_be_planned_is_named(
    demo_model: Path, flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(demo_model), *flags, "--request-rate", "5"]) == 1
    assert capsys.readouterr().err.startswith(f"pagemesh plan: {sentence}")


def test_an_encoder_has_no_deployment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["BertModel"], "vocab_size": 30522}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path), *CPU, "--request-rate", "5"]) == 1
    assert "which generates no tokens" in capsys.readouterr().err


def test_a_file_of_requests_has_its_own_times(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"timestamp": 250 * n, "input_length": 100, "output_length": 5, "hash_ids": [n]}
        for n in range(41)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert main(["plan", str(demo_model), *CPU, "--trace", str(trace), "--json"]) == 0
    traffic = json.loads(capsys.readouterr().out)["deployment"]["traffic"]
    assert traffic == {"request_rate": 4.0, "prompt_tokens": 100.0, "output_tokens": 5.0}
