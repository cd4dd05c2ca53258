"""The command itself: what it lists, its exit codes, what it loads."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from pagemesh.cli.main import COMMANDS, main, names_in
from tests.support.ports import free_port


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert list(COMMANDS) == [
        "serve",
        "up",
        "gateway",
        "router",
        "prefill",
        "decode",
        "kvstore",
        "keys",
        "certificates",
        "health",
        "plan",
        "doctor",
        "sim",
        "bench serve",
        "bench throughput",
        "bench latency",
    ]
    assert all(f"  {name.split()[0]}" in printed for name in COMMANDS)


def test_a_group_of_commands_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "usage: pagemesh bench" in printed
    assert names_in("bench") == ["serve", "throughput", "latency"]
    assert all(f"  {name}" in printed for name in names_in("bench"))
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == printed


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagemesh {metadata.version('pagemesh')}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["upp"], "pagemesh: there is no command 'upp'; see pagemesh --help\n"),
        (
            ["bench", "srve"],
            "pagemesh bench: there is no command 'srve'; see pagemesh bench --help\n",
        ),
        (
            ["bench", "serve", "--port", "0"],
            "pagemesh bench serve: --port is 0, but must be between 1 and 65535\n",
        ),
        (["up", "--decode", "0"], "pagemesh up: --decode is 0, but must be at least 1\n"),
        (["decode"], "pagemesh decode: --model is '', but must be a folder or a hub id\n"),
        (["plan"], "pagemesh plan: --model is '', but must be a folder or a hub id\n"),
        (
            ["keys", "new", "--tenant", "a b"],
            "pagemesh keys: --tenant is 'a b', but must be 1 to 64 letters, digits, dots, dashes or "
            "underscores\n",
        ),
        (["gateway"], "pagemesh gateway: --routers is (), but must be one or more host:port\n"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", sentence)


def test_no_command_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: pagemesh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("router", ["--model", "models/demo", "--kvstore", "127.0.0.1:1"]),
        ("prefill", ["--model", "models/demo"]),
    ],
)
def test_a_taken_port_is_one_sentence_and_exit_code_1(command: str, flags: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        completed = subprocess.run(
            [sys.executable, "-m", "pagemesh.cli", command, *flags, "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert completed.returncode == 1
    assert completed.stderr.startswith(f"pagemesh {command}: cannot listen on 127.0.0.1:{port}")
    assert completed.stderr.count("\n") == 1


def test_a_mesh_without_a_folder_for_sockets_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    flags = ("--model", "models/demo", "--device", "cpu", "--port", str(free_port()))
    assert main(["up", *flags]) == 1
    said = capsys.readouterr().err
    assert said.startswith("pagemesh up: there is no folder to write temporary files into")
    assert said.count("\n") == 1


def test_a_model_without_weights_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree("models/demo", model, ignore=shutil.ignore_patterns("*.safetensors*"))
    assert main(["up", "--model", str(model), "--device", "cpu", "--port", str(free_port())]) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"pagemesh up: {model} has neither model.safetensors nor model.safetensors.index.json\n"
    )
    assert said.out == ""


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        completed = subprocess.run(
            [sys.executable, "-m", "pagemesh.cli", "up", "--help"],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert completed.stderr == ""


def test_help_and_the_supervisor_load_nothing_heavy() -> None:
    script = (
        "import json, sys\n"
        "import pagemesh.cli.main\n"
        "light = sorted(sys.modules)\n"
        "import pagemesh.cli.up.run\n"
        "print(json.dumps([light, sorted(sys.modules)]))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    for_help, for_up = json.loads(completed.stdout)
    heavy = {"torch", "transformers", "numpy", "tokenizers", "huggingface_hub", "structlog"}
    assert heavy & set(for_up) == set()
    assert {"grpc", "google.protobuf"} & set(for_help) == set()


@pytest.mark.parametrize("command", ["kvstore", "decode"])
def test_a_part_does_not_load_the_settings_of_other_commands(command: str) -> None:
    script = (
        "import json, sys\n"
        "from pagemesh.cli.main import main\n"
        f"assert main([{command!r}, '--nonsense']) == 2\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('pagemesh.')]))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    found = [name for name in json.loads(completed.stdout) if name.endswith(".settings")]
    assert found == []
