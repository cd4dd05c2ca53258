"""How `pagemesh up` ends, and how it refuses to begin."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.mesh.harness import Mesh, leftovers, running_mesh, until, up_command
from tests.support.late_imports import openai
from tests.support.ports import free_port

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
NUM_STREAMS = 8
SHARED_MEMORY = re.compile(r"/dev/shm/\S+")


def shared_memory_segments(mesh: Mesh) -> set[Path]:
    """Those that its processes have mapped or opened: others on this machine come and go with others."""
    supervisor = psutil.Process(mesh.process.pid)
    found = set()
    for process in [supervisor, *supervisor.children(recursive=True)]:
        folder = Path("/proc", str(process.pid))
        found.update(SHARED_MEMORY.findall((folder / "maps").read_text()))
        for opened in (folder / "fd").iterdir():
            # It may be closed just now.
            with suppress(FileNotFoundError):
                found.update(SHARED_MEMORY.findall(str(opened.readlink())))
    return set(map(Path, found))


def end_of_stream(client: openai.OpenAI) -> object:
    """The code of the error that ends a long answer."""
    with pytest.raises(openai.APIError) as caught:
        stream = client.completions.create(
            model="demo",
            prompt="Count from 1 to 1000:",
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in stream:
            pass
    return caught.value.code or repr(caught.value)


def sample_answer(mesh: Mesh) -> str:
    lines = mesh.output.splitlines()
    return next(line for line in lines if line.startswith("< ")).removeprefix("< ")


@pytest.mark.product(most=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_ends_everything_within_five_seconds(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_mesh(tmp_path, "--model", str(DEMO)) as mesh:
        assert len(sample_answer(mesh)) > 10
        # A request is running, of which nobody reads the answer.
        with mesh.client().completions.create(
            model="demo",
            prompt="Count from 1 to 100:",
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            next(iter(stream))
            left = leftovers(mesh)
            assert len(left()) > 10
            segments = shared_memory_segments(mesh)
            with ThreadPoolExecutor(NUM_STREAMS) as threads, ExitStack() as stack:
                # On busy cores, to make one takes as long as a stream lasts: they begin together.
                clients = [
                    openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0)
                    for _ in range(NUM_STREAMS)
                ]
                for client in clients:
                    stack.enter_context(client)
                ends = [threads.submit(end_of_stream, client) for client in clients]
                until(
                    lambda: mesh.metric("decode-0", "vllm:num_requests_running") > NUM_STREAMS,
                    "all are running",
                )
                started = time.monotonic()
                mesh.process.send_signal(number)
                assert mesh.process.wait(10) == 0
                assert time.monotonic() - started < 5.0
                assert left() == []
                # Who reads is told how it ended, as by every other end of a stream.
                assert [end.result(10) for end in ends] == ["draining"] * NUM_STREAMS
        assert mesh.output.rstrip().endswith("Stopped.")
    assert [segment for segment in segments if segment.exists()] == []
    assert "< (no answer" not in mesh.output


def test_the_parts_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--model", str(DEMO), "--no-sample", "--prefill", "0") as mesh:
        left = leftovers(mesh)
        mesh.process.kill()
        mesh.process.wait(10)
        until(lambda: left() == [], "everything is gone", 5)


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a `pagemesh up` that must not start; it has printed nothing else."""
    completed = run_up(*arguments)
    return completed.returncode, completed.stderr


def run_up(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        up_command(*arguments), capture_output=True, text=True, check=False, timeout=60
    )


def one_sentence(text: str) -> bool:
    return text.startswith("pagemesh up: ") and text.count("\n") == 1 and "Traceback" not in text


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, text = refused("--model", str(DEMO), "--port", str(port))
    assert code == 1
    assert text == f"pagemesh up: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_redis_that_does_not_answer_is_refused_before_anything_starts() -> None:
    port = free_port()
    index = f"redis://:secret@127.0.0.1:{port}/0"
    ended = run_up("--model", str(DEMO), "--kvstore", "2", "--index", index)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"pagemesh up: --index names the server at 127.0.0.1:{port}, which does not answer\n"
    )


def edited(folder: Path, edit: Callable[[Path], None]) -> str:
    """A copy of the demo model with something wrong."""
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.py", "demo_corpus"))
    edit(folder)
    return str(folder)


def name_another_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["FooForCausalLM"]}))


def cut_the_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


@pytest.mark.product(most=1)
@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (cut_the_weights, "model.safetensors"),
        (name_another_architecture, "FooForCausalLM"),
        (shutil.rmtree, "no such folder"),
    ],
    ids=[
        "no config",
        "broken config",
        "no tokenizer",
        "broken tokenizer",
        "no weights",
        "cut weights",
        "unknown architecture",
        "no folder",
    ],
)
def test_a_model_folder_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, edit: Callable[[Path], None], named: str
) -> None:
    model = edited(tmp_path / "model", edit)
    code, text = refused("--model", model, "--port", str(free_port()), "--prefill", "0")
    assert code == 1
    assert one_sentence(text), text
    assert named in text
    assert not [p for p in psutil.process_iter() if model in " ".join(safe_command_line(p))]


def safe_command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prot", "1"], "--prot"),
        (["--port", "abc"], "--port"),
        (["--port", "99999"], "--port"),
        (["--decode", "0"], "--decode"),
        (["--block-size", "0"], "--block-size"),
        (["--policy", "best"], "--policy"),
        (["here"], "here"),
    ],
)
def test_a_bad_flag_is_refused_in_one_sentence(arguments: list[str], named: str) -> None:
    code, text = refused(*arguments)
    assert code == 2
    assert one_sentence(text), text
    assert named in text
