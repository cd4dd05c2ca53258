"""`pagemesh sim`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.simcheck.rates import write_rates
from pagemesh.cli.main import main
from pagemesh.config import RoutingPolicy
from pagemesh.membership.publisher import LOAD_PERIOD as PUBLISHED_PERIOD
from pagemesh.sim.model import MeshModel, PrefillModel, WorkerModel, read_model
from pagemesh.sim.tokens import TokenTimes
from pagemesh.sim.worker import LOAD_PERIOD

pytestmark = pytest.mark.costly

SMALL = ("--num-prompts", "40", "--decode", "2", "--prefix-tokens", "500", "--prefixes", "4")
NOTHING = ("--trace", "no-such-file")
"""With settings that are refused, nothing is simulated even if they are not."""


def test_every_policy_is_a_line_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    policies = (*get_args(RoutingPolicy), "oracle")
    assert main(["sim", *SMALL, "--policies", *policies, "--request-rate", "4", "20"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["policy", "rate/s", "avail.", "capt.", "deliv."]
    assert [line.split()[0] for line in lines[: 2 * len(policies)]] == [*policies, *policies]


def test_figures_and_plots_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "figures.json", tmp_path / "plots"
    flags = ["--policies", "kv_aware", "--json", str(file), "--plots", str(folder)]
    assert main(["sim", *SMALL, *flags]) == 0
    figures = json.loads(file.read_text())
    (run,) = figures["runs"]
    assert run["outcomes"] == {"completed": 40}
    assert run["delivered_hit_rate"] <= run["shared_hit_rate"]
    assert sum(run["assigned"]) == 40
    assert figures["settings"]["model"]["block_size"] == 16
    rate = f"{run['request_rate']:.2f}"
    assert sorted(path.name for path in folder.iterdir()) == [
        "goodput.png",
        "hit_rate.png",
        f"load_kv_aware_{rate}.png",
        "ttft_p50.png",
        "ttft_p99.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["sim", *SMALL, "--plots", str(tmp_path / "plots")]) == 1
    assert "pip install 'pagemesh[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--policies", "best"), "invalid choice 'best' for argument '--policies'"),
        (
            ("--request-rate", "4", "-2"),
            "--request-rate is -2.0, but must be from 0.001 to 1,000,000",
        ),
        (("--decode", "0"), "--decode is 0, but must be from 1 to 100,000"),
        (("--prefill", "100001"), "--prefill is 100001, but must be from 0 to 100,000"),
        (("--prefix-tokens", "-1"), "--prefix-tokens is -1, but must be from 0 to 10,000,000"),
        (("--output-tokens", "4097"), "--output-tokens is 4097, but must be from 1 to 4,096"),
        (("--turns", "0.5"), "--turns is 0.5, but must be from 1 to 1,000,000"),
        (("--chars-per-token", "1e-9"), "--chars-per-token is 1e-09, but must be from 0.01 to"),
        (("--scorer-weights", "luck=1"), "--scorer-weights is 'luck=1'"),
        (("--goodput",), "--goodput is (), but must be one or more limits"),
        (
            ("--goodput", "itl:5"),
            "--goodput is 'itl:5', but must be name:milliseconds of one of ttft,",
        ),
        (("--goodput", "ttft"), "--goodput is 'ttft', but must be name:milliseconds"),
        (("--goodput", "ttft:0"), "--goodput is 'ttft:0', but must be name:milliseconds"),
        (("--goodput", "tpot:nan"), "--goodput is 'tpot:nan', but must be name:milliseconds"),
        (("--goodput", "e2el:inf"), "--goodput is 'e2el:inf', but must be name:milliseconds"),
        (
            ("--goodput", "ttft:5", "ttft:6"),
            "--goodput is 'ttft:6', but must be the only limit of ttft",
        ),
        (
            ("--trace", "a", "--write-trace", "b"),
            "--write-trace is 'b', but must be unset with --trace",
        ),
    ],
)
def test_bad_settings_are_one_sentence_and_exit_code_2(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"pagemesh sim: {sentence}")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--request-rate",
        "--burstiness",
        "--zipf",
        "--turns",
        "--think-time",
        "--chars-per-token",
        "--mean-time-between-failures",
        "--restart-time",
        "--cores",
        "--request-timeout",
        "--index-lag",
        "--report-delay",
    ],
)
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e300"])
def test_numbers_that_no_mesh_has_are_refused_by_name(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *NOTHING, flag, value]) == 2
    assert capsys.readouterr().err.startswith(
        f"pagemesh sim: {flag} is {float(value)}, but must be"
    )


@pytest.mark.parametrize(
    "flag",
    [
        "--num-prompts",
        "--prefixes",
        "--prompt-tokens",
        "--output-tokens",
        "--decode",
        "--routers",
        "--block-size",
        "--max-waiting-requests",
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "1000000000000"])
def test_counts_that_no_mesh_has_are_refused_by_name(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *NOTHING, flag, value]) == 2
    assert capsys.readouterr().err.startswith(f"pagemesh sim: {flag} is {value}, but must be from")


def test_one_of_two_thousand_workers_is_found_again_by_its_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    size = ("--decode", "2000", "--block-size", "1024", "--num-prompts", "40")
    load = ("--prefixes", "1", "--prefix-tokens", "8192", "--request-rate", "2")
    assert main(["sim", *size, *load, "--policies", "kv_aware", "--json", str(file)]) == 0
    (run,) = json.loads(file.read_text())["runs"]
    assert run["outcomes"] == {"completed": 40}
    assert len(run["assigned"]) == 2000
    assert run["delivered_hit_rate"] > 0.8 * run["shared_hit_rate"] > 0.5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "decode: {prefill: {seconds_per_token: -1}}",
            "prefill seconds_per_token is -1.0, but must",
        ),
        ("decode: {kv_tokens: 10}", "decode kv_tokens is 10, but must be at least block_size, 16"),
        ("decode: {max_num_seqs: 4000}", "max_num_batched_tokens is 2048, but must be at least"),
        ("blocksize: 16", "blocksize is no field; there are block_size, cores, decode"),
        ("decode: {kv_tokens: 1e30}", "but must be from 1 to 100,000,000"),
        ("block_size: 1e12", "block_size is 1000000000000, but must be from 1 to 10,000,000"),
        (f"block_size: 1{5000 * '0'}", "which is no YAML: Exceeds the limit"),
        (100_000 * "[", "which is no YAML: maximum recursion depth exceeded"),
        (
            "decode: {prefill: {seconds_per_token: 0, seconds_per_pair: 0, seconds_per_step: 0}}",
            "are 0, as of a worker that has measured nothing, but one must be positive",
        ),
        ("decode: {kv_tokens: many}", "decode.kv_tokens is 'many', but must be a number"),
        ("decode: {kv_tokens: 1.5}", "decode.kv_tokens is 1.5, but must be a whole number"),
        ("decode: {kv_tokens: .nan}", "decode.kv_tokens is nan, but must be a finite number"),
        ("kv_bytes_per_token: 100", "kv_bytes_per_token is 100, but must be a multiple of 64"),
        ("cores: 0", "cores is 0.0, but must be positive"),
        ("link: 5", "link is 5, but must be a mapping"),
        ("- 5", "the file is [5], but must be a mapping"),
        ("decode: [", "which is no YAML"),
    ],
)
def test_bad_rates_are_named(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(content)
    assert main(["sim", "--rates", str(path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"pagemesh sim: --rates is {str(path)!r}")
    assert reason in printed
    assert printed.count("\n") == 1


def test_blocks_that_no_cache_holds_are_refused_by_their_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "--block-size", "400001"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("pagemesh sim: --block-size is 400001: decode kv_tokens is 400000,")


@pytest.mark.parametrize("flag", ["--json", "--plots"])
def test_what_cannot_be_written_is_refused_before_anything_is_simulated(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file" / "below"
    path.parent.write_text("no folder")
    assert main(["sim", *SMALL, flag, str(path)]) == 1
    assert capsys.readouterr().err == f"pagemesh sim: {flag} is {str(path)!r}: Not a directory\n"


def test_a_plot_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "goodput.png").mkdir()
    assert main(["sim", *SMALL, "--policies", "kv_aware", "--plots", str(tmp_path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"pagemesh sim: --plots is {str(tmp_path)!r}: ")
    assert last.endswith("goodput.png: Is a directory")


def test_rates_are_read_and_what_is_left_out_is_the_example(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text("decode: {prefill: {seconds_per_token: 5e-5}}\nprefill: {kv_tokens: 99000}\n")
    model = read_model(str(path))
    assert model.decode.prefill.seconds_per_token == 5e-5
    assert model.decode.kv_tokens == MeshModel().decode.kv_tokens
    assert model.prefill_worker.kv_tokens == 99_000


def test_rates_of_a_worker_that_laid_all_on_steps_and_pairs_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text("decode: {prefill: {seconds_per_token: 0.0, seconds_per_pair: 8.6e-07}}\n")
    assert read_model(str(path)).decode.prefill.seconds_per_token == 0


def test_rates_that_were_measured_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    slow = PrefillModel(seconds_per_token=9e-5)
    model = MeshModel(
        block_size=32, cores=1.5, measured={"decode-3": slow}, prefill=WorkerModel(max_num_seqs=5)
    )
    for each in (model, MeshModel()):
        write_rates(path, each)
        assert read_model(str(path)) == each


def test_percentiles_of_token_times_are_right_within_half_a_percent() -> None:
    times = TokenTimes()
    for number in range(1, 1001):
        times.add(2, number / 1000)
    assert times.num_gaps == 2000
    assert times.percentile(0.5) == pytest.approx(0.5, rel=0.006)
    assert times.percentile(0.99) == pytest.approx(0.99, rel=0.006)
    assert TokenTimes().percentile(0.5) is None


def test_load_is_reported_as_often_as_by_real_workers() -> None:
    assert LOAD_PERIOD == PUBLISHED_PERIOD
