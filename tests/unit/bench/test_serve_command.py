"""`pagemesh bench serve` against a server that is no mesh, and whose delays are known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh.bench.prompt_writer import endpoint_tokenizer
from pagemesh.bench.settings import BenchServeConfig
from pagemesh.cli.main import main
from tests.support.paced_server import KEY, PacedServer, running_paced_server
from tests.support.ports import free_port

pytestmark = pytest.mark.costly

DEMO = Path(__file__).resolve().parents[3] / "models/demo"
SMALL = ("--tokenizer", str(DEMO), "--random-input-len", "7", "--num-prompts", "3")


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("PAGEMESH_API_KEY", raising=False)


@pytest.fixture
def quick() -> Iterator[PacedServer]:
    """A server without any delays, unless a test gives it some."""
    with running_paced_server() as server:
        yield server


def serve(server: PacedServer, *arguments: str) -> int:
    return main(["bench", "serve", "--port", str(server.port), *SMALL, *arguments])


def saved(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_known_delays_are_what_is_measured(
    backend: str, quick: PacedServer, tmp_path: Path
) -> None:
    quick.first_s, quick.gap_s = 0.1, 0.02
    arguments = ["--request-rate", "5", "--num-prompts", "10", "--random-output-len", "11"]
    files = ["--save-result", "--result-dir", str(tmp_path), "--metric-percentiles", "50,99"]
    assert serve(quick, "--backend", backend, *arguments, *files) == 0
    found = saved(tmp_path)
    assert found["completed"] == 10
    assert found["total_output_tokens"] == 110
    assert found["total_input_tokens"] == 70, "as the server says"
    # A busy machine may add to each; but nothing comes before it was sent, and a request is its parts.
    assert 99 < found["median_ttft_ms"] < found["median_e2el_ms"] / 2
    assert found["median_e2el_ms"] > 299
    decoding = found["mean_e2el_ms"] - found["mean_ttft_ms"]
    assert 10 * found["mean_tpot_ms"] == pytest.approx(decoding, rel=0.01)
    assert 10 * found["mean_itl_ms"] == pytest.approx(decoding, rel=0.01)
    assert found["p50_e2el_ms"] == found["median_e2el_ms"]
    assert found["request_rate"] == 5.0


def test_the_table_is_vllms(quick: PacedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(quick, "--goodput", "ttft:60000", "--percentile-metrics", "ttft,e2el") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "============ Serving Benchmark Result ============"
    for line in (
        "Successful requests:",
        "Request goodput (req/s):",
        "P99 TTFT (ms):",
        "Mean E2EL (ms):",
    ):
        assert line in printed.out
    assert "TPOT" not in printed.out
    assert "all at once: 3 of 3 requests ended, 0 under way" in printed.err


def test_requests_have_what_flags_say(quick: PacedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMESH_API_KEY", KEY)
    quick.wants_key = True
    extra = '{"top_k": 4, "stream_options": null, "temperature": 0.5}'
    arguments = ["--temperature", "0", "--extra-body", extra, "--header", "x-test=a=b"]
    assert serve(quick, *arguments, "--random-output-len", "2") == 0
    body, headers = quick.asked[-1], quick.headers[-1]
    prompt = body.pop("prompt")
    assert isinstance(prompt, str)
    expected = {"model": "paced", "max_tokens": 2, "stream": True, "ignore_eos": True}
    assert body == {**expected, "top_k": 4, "temperature": 0.5}
    assert headers["x-test"] == "a=b"


def test_tokens_are_counted_here_when_the_server_does_not_tell(
    quick: PacedServer, tmp_path: Path
) -> None:
    quick.tells_usage = False
    assert (
        serve(quick, "--random-output-len", "5", "--save-result", "--result-dir", str(tmp_path))
        == 0
    )
    found = saved(tmp_path)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (21, 15)


def test_broken_answers_are_failures_and_the_first_is_told(
    quick: PacedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.breaks_off = True
    files = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--metadata", "a=b"]
    # A single token, as before the measurement, does not break off.
    assert serve(quick, *files) == 1
    printed = capsys.readouterr().out
    assert "Failed requests:                         3" in printed
    assert "First error: the stream ended before the answer did" in printed
    found = saved(tmp_path)
    assert (found["completed"], found["failed"], found["a"]) == (0, 3, "b")
    assert found["errors"] == ["the stream ended before the answer did"] * 3
    assert [len(itls) for itls in found["itls"]] == [64] * 3


def test_a_request_without_end_fails_at_its_timeout(
    quick: PacedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.gap_s = 0.5
    assert serve(quick, "--request-timeout", "1", "--random-output-len", "50") == 1
    assert "First error: no end within 1 s" in capsys.readouterr().out


def test_what_is_wrong_is_one_sentence(
    quick: PacedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{quick.port}"
    prog = "pagemesh bench serve: "
    assert serve(quick, "--model", "none") == 1
    assert capsys.readouterr().err == (
        f"{prog}{url}/v1/completions answers 404: no such model; see --model and --endpoint\n"
    )
    quick.wants_key = True
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    assert serve(quick) == 1
    assert capsys.readouterr().err == (
        f"{prog}{url}/v1/completions answers 401: no such key; the key comes from OPENAI_API_KEY or"
        " PAGEMESH_API_KEY in the environment\n"
    )
    nobody = f"http://127.0.0.1:{free_port()}"
    began_at = time.monotonic()
    assert serve(quick, "--base-url", nobody, "--ready-check-timeout-sec", "1.2") == 1
    assert time.monotonic() - began_at > 0.9, "it is waited for"
    error = f"{prog}{nobody}/v1/completions cannot be reached: Connection refused\n"
    assert capsys.readouterr().err == error


def test_several_rates_are_measured_one_by_one_and_drawn(
    quick: PacedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plots = tmp_path / "plots"
    rates = ["--request-rate", "20", "40", "inf", "--metric-percentiles", "90,99"]
    assert (
        serve(quick, *rates, "--plots", str(plots), "--random-output-len", "3", "--disable-tqdm")
        == 0
    )
    printed = capsys.readouterr()
    assert printed.err == ""
    overview = printed.out[printed.out.index("    rate/s") :].splitlines()
    assert [line.split()[0] for line in overview[1:4]] == ["20", "40", "inf"]
    prompts = [body["prompt"] for body in quick.asked if body["max_tokens"] == 3]
    assert len(set(prompts)) == 9, "no rate finds the prompts of another one in a cache"
    assert (plots / "latency_over_rate.png").read_bytes().startswith(b"\x89PNG\r\n")
    page = (plots / "latency_over_rate.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert "var(--s1)" in page
    assert "#0a000" not in page
    assert "#0b000" not in page
    assert "<td>40</td>" in page
    assert not any(word in page for word in ("<script", "<link", "src=", "@import", "url(http"))


def test_ctrl_c_ends_it_at_once_with_what_there_is(quick: PacedServer, tmp_path: Path) -> None:
    quick.gap_s = 0.02
    command = [sys.executable, "-P", "-m", "pagemesh.cli", "bench", "serve", *SMALL]
    command += ["--port", str(quick.port), "--num-prompts", "500", "--request-rate", "20"]
    command += ["--random-output-len", "10", "--save-result", "--result-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while len(quick.asked) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stopped_at = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - stopped_at < 5
    assert process.returncode == 130
    assert "Traceback" not in err
    found = saved(tmp_path)
    assert found["stopped"] is True
    assert found["completed"] + found["unfinished"] == 500
    assert found["completed"] >= 3
    assert f"Stopped before their end:                {found['unfinished']}" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--request-rate", "0"],
            "--request-rate is 0.0, but must be from 0.001 to 1,000,000, or inf",
        ),
        (["--request-rate", "1", "1"], "--request-rate is (1.0, 1.0), but must be different ones"),
        (["--burstiness", "0"], "--burstiness is 0.0, but must be from 0.001 to 1,000,000"),
        (["--max-concurrency", "0"], "--max-concurrency is 0, but must be at least 1"),
        (["--dataset-name", "sharegpt"], "--dataset-path is None, but must be the file of"),
        (
            ["--random-range-ratio", "1"],
            "--random-range-ratio is 1.0, but must be from 0 to less than 1",
        ),
        (
            ["--goodput", "itl:5"],
            "--goodput is 'itl:5', but must be name:milliseconds of one of ttft",
        ),
        (
            ["--percentile-metrics", "ttft,x"],
            "--percentile-metrics is 'x', but must be one or more of",
        ),
        (
            ["--metric-percentiles", "101"],
            "--metric-percentiles is '101', but must be numbers from 0",
        ),
        (["--extra-body", "[1]"], "--extra-body is '[1]', but must be a JSON object"),
        (["--header", "x"], "--header is 'x', but must be KEY=VALUE"),
        (["--base-url", "here"], "--base-url is 'here', but must be http://host:port or"),
        (["--result-dir", "x"], "--result-dir is 'x', but must be unset without --save-result"),
        (
            ["--save-result", "--result-filename", "x", "--request-rate", "1", "2"],
            "--result-filename is 'x', but must be unset with several rates",
        ),
    ],
)
def test_wrong_flags_are_named_with_their_values(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"pagemesh bench serve: {sentence}")


@pytest.mark.parametrize("model", ["demo", "org/model"])
def test_a_models_name_that_is_a_source_is_its_tokenizers_too(model: str) -> None:
    assert endpoint_tokenizer(BenchServeConfig(), model) == model


def test_the_tokenizer_is_asked_for_when_the_models_name_is_none(
    quick: PacedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--port", str(quick.port)]) == 1
    assert "--tokenizer is unset, but must be a folder or a hub id: the model's name, 'paced'" in (
        capsys.readouterr().err
    )
