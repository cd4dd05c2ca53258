"""Commands from guides that are written for vLLM run as they stand, with another program's name and a small model."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import httpx
import pytest

from tests.hygiene.tree import ROOT
from tests.mesh.harness import until
from tests.support.guide_commands import LOAD, PROGRAMS, QUANTISED, SERVERS
from tests.support.ports import free_port
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.support.rounded_demo import write_demo_awq, write_demo_gguf

# Each takes a start or more; what flags mean is tested without one.
pytestmark = pytest.mark.costly

MODEL = "models/demo"
START_S = 180.0
"""Of the largest steps on a busy machine."""


def as_typed(line: str, port: int, file: Path | None = None) -> list[str]:
    words = shlex.split(line.replace("PROGRAM", "pagemesh").replace("MODEL", MODEL))
    words = [str(file) if word == "FILE" else word for word in words]
    if "8000" in words:
        words[words.index("8000")] = str(port)
    elif line in (LOAD, *SERVERS, *QUANTISED):
        # Not the guide's, but many tests share the ports of this machine.
        words += ["--port", str(port)]
    programs = Path(sys.executable).parent
    return [str(programs / words[0]), *words[1:]]


@contextmanager
def serving(line: str, port: int, log: Path, folder: Path = ROOT) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(as_typed(line, port), cwd=folder, stdout=out, stderr=out)
    try:
        until(lambda: answers(port) or process.poll() is not None, log.read_text(), START_S)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def check_answer(port: int, key: str = "none") -> None:
    """Of the one model that there is."""
    server, headers = f"http://127.0.0.1:{port}/v1", {"authorization": f"Bearer {key}"}
    (model,) = httpx.get(f"{server}/models", headers=headers, timeout=60).json()["data"]
    asked = {"model": model["id"], "prompt": "a b", "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{server}/completions", json=asked, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.product(most=1)
@pytest.mark.parametrize("line", SERVERS)
def test_a_server_answers(line: str, tmp_path: Path) -> None:
    port = free_port()
    with serving(line, port, tmp_path / "log"):
        check_answer(port, "your-secret-key" if "--api-key" in line else "none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie of which the commands speak: the demo, in other formats."""
    folder = tmp_path_factory.mktemp("guide")
    demo, (parent, _) = ROOT / MODEL, MODEL.split("/")
    (folder / parent).mkdir()
    (folder / MODEL).symlink_to(demo)
    fp8 = folder / f"{MODEL}-FP8"
    # Of random weights.
    quantise(demo, fp8, folder / "dense", FORMATS["FP8"])
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo / file, fp8)
    config = write_demo_awq(folder / f"{MODEL}-AWQ") / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"max_position_embeddings": 4096}))
    (folder / f"{MODEL}-GGUF").mkdir()
    kind = gguf.GGMLQuantizationType.Q4_K
    write_demo_gguf(folder / f"{MODEL}-GGUF/FILE.Q4_K_M.gguf", kind)
    return folder


@pytest.mark.product(most=1)
@pytest.mark.parametrize("line", QUANTISED)
def test_a_server_of_quantised_weights_answers(line: str, folder: Path, tmp_path: Path) -> None:
    port = free_port()
    with serving(line, port, tmp_path / "log", folder):
        check_answer(port)


@pytest.mark.timeout(900)
@pytest.mark.product(most=1)
@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_ends_well(line: str) -> None:
    done = subprocess.run(
        as_typed(line, 0), cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_server_is_measured(tmp_path: Path) -> None:
    port = free_port()
    said = [{"from": "human", "value": "Who are you?"}, {"from": "gpt", "value": "A small model."}]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"id": str(n), "conversations": said} for n in range(50)]))
    with serving(SERVERS[0], port, tmp_path / "log"):
        few = as_typed(LOAD, port, file)
        few[few.index("1000")] = "20"
        done = subprocess.run(few, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Successful requests" in done.stdout
