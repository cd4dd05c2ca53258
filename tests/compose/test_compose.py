"""docker-compose.yml as a user runs it: real containers, a real client, a real death, a rolling update."""

from __future__ import annotations

import json

import pytest

from tests.compose.asking import QUESTIONS, ask, traffic
from tests.compose.compose_mesh import ComposeMesh
from tests.compose.container_engine import ContainerEngine
from tests.hygiene.tree import ROOT
from tests.support.late_imports import openai

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

PARTS = (
    "gateway",
    "router-0",
    "router-1",
    "prefill-0",
    "prefill-1",
    "decode-0",
    "decode-1",
    "kvstore",
)
WITHOUT_TORCH = ("gateway", "router-0", "kvstore")
MOST_BYTES = 400_000_000


@pytest.fixture
def client(mesh: ComposeMesh) -> openai.OpenAI:
    """That asks once, and reports whatever goes wrong."""
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="none", max_retries=0, timeout=60
    )


@pytest.fixture
def expected(client: openai.OpenAI) -> dict[str, str]:
    """What an undisturbed mesh answers."""
    return {question: ask(client, question) for question in QUESTIONS}


def test_openais_client_gets_an_answer(client: openai.OpenAI) -> None:
    assert ask(client, QUESTIONS[0], 8).startswith("The capital of France is Paris")


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_what_computes_nothing_is_small(mesh: ComposeMesh, part: str) -> None:
    image = json.loads(mesh.engine.run("image", "inspect", mesh.inspect(part)["Image"]))[0]
    assert image["Size"] < MOST_BYTES
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        mesh.execute(part, "python", "-c", "import torch")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_may_do_what_it_must_and_no_more(mesh: ComposeMesh, part: str) -> None:
    described = mesh.inspect(part)
    assert described["Config"]["User"] == "65532:65532"
    assert described["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert described["HostConfig"]["CapDrop"] == ["ALL"]
    assert described["HostConfig"]["Memory"] > 0
    with pytest.raises(AssertionError, match="Read-only file system"):
        mesh.execute(part, "touch", "/opt/pagemesh/here")


EXTENSION = """
import importlib.util, os, pathlib, subprocess, sysconfig
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(exist_ok=True)
source, library = folder / "launcher.c", folder / "launcher.so"
source.write_text('''
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher"};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
''')
include = sysconfig.get_paths(scheme="posix_prefix")["include"]
subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
spec = importlib.util.spec_from_file_location("launcher", library)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print("compiled and loaded")
"""
"""As Triton does it with what starts a kernel, where the overlay for GPUs tells it to."""


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_image_for_gpus_compiles_what_starts_kernels(
    engine: ContainerEngine, variables: dict[str, str], role: str
) -> None:
    image = f"pagemesh-test-{role}-gpu"
    arguments = [
        f"{name}={variables[name]}"
        for name in ("TORCH_INDEX", "PIP_TRUSTED_HOST")
        if name in variables
    ]
    built = [word for each in (*arguments, "DEVICE=cuda") for word in ("--build-arg", each)]
    build = ("build", "-t", image, "-f", f"services/{role}/Dockerfile", *built, str(ROOT))
    engine.run(*build, timeout=1200)
    volume = f"{image}-kernels"
    allowed = (
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--cap-drop",
        "ALL",
        "--volume",
        f"{volume}:/kernels",
    )
    try:
        answer = engine.run(
            "run",
            "--rm",
            *allowed,
            "--env",
            "TRITON_CACHE_DIR=/kernels",
            "--entrypoint",
            "python",
            image,
            "-c",
            EXTENSION,
        )
    finally:
        engine.run("volume", "rm", "--force", volume)
    assert "compiled and loaded" in answer


def connect(host: str, port: int) -> tuple[str, ...]:
    return ("python", "-c", f"import socket; socket.create_connection(({host!r}, {port}), 2)")


def test_networks_keep_apart_what_need_not_meet(mesh: ComposeMesh) -> None:
    mesh.execute("gateway", *connect("router", 9000))
    mesh.execute("kvstore", *connect("valkey", 6379))
    for part, host, port in (("gateway", "decode-0", 9000), ("decode-0", "valkey", 6379)):
        with pytest.raises(AssertionError, match=r"Name or service|Temporary failure|No address"):
            mesh.execute(part, *connect(host, port))


def test_a_killed_decode_container_costs_nothing(
    mesh: ComposeMesh, client: openai.OpenAI, expected: dict[str, str]
) -> None:
    with traffic(client) as asked:
        for part in ("decode-0", "decode-1"):
            num_answers = len(asked.answers)
            mesh.kill(part)
            mesh.wait_until_healthy(part)
            assert len(asked.answers) > num_answers
    assert asked.errors == []
    assert {(q, a) for q, a in asked.answers if a != expected[q]} == set()
    assert mesh.inspect("decode-0")["RestartCount"] == 1


def test_a_rolling_update_loses_no_request(
    mesh: ComposeMesh, client: openai.OpenAI, expected: dict[str, str]
) -> None:
    before = {part: mesh.container(part) for part in PARTS}
    with traffic(client) as asked:
        for part in PARTS[1:]:
            mesh.compose("up", "--detach", "--no-deps", "--force-recreate", part)
            mesh.wait_until_healthy(part)
    assert asked.errors == []
    assert {(q, a) for q, a in asked.answers if a != expected[q]} == set()
    assert all(mesh.container(part) != before[part] for part in PARTS[1:])


def test_a_gateway_that_is_replaced_is_a_pause_for_clients_that_try_again(
    mesh: ComposeMesh, client: openai.OpenAI, expected: dict[str, str]
) -> None:
    with traffic(client.with_options(max_retries=10)) as asked:
        mesh.compose("up", "--detach", "--no-deps", "--force-recreate", "gateway")
        mesh.wait_until_healthy("gateway")
    assert asked.errors == []
    assert {(q, a) for q, a in asked.answers if a != expected[q]} == set()


@pytest.mark.parametrize(
    ("part", "arguments", "said"),
    [
        ("decode-0", ("--model", "models/demo", "--max-num-seqs=-1"), "--max-num-seqs is -1"),
        ("decode-0", ("--model", "/models/absent"), "--model is '/models/absent'"),
        ("decode-0", ("--model", "models/demo", "--device", "cuda"), "--device is 'cuda'"),
        ("kvstore", ("--index", "http://valkey"), "--index is 'http://valkey'"),
        ("router-0", ("--model", "models/demo", "--kvstore", "kvstore"), "--kvstore is 'kvstore'"),
        ("gateway", ("--routers", "router"), "--routers has 'router'"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_setting_is_named_by_who_refuses_it(
    mesh: ComposeMesh, part: str, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        mesh.compose("run", "--rm", "--no-deps", "-T", part, *arguments, timeout=60)
    # Behind the command, which names what it was given, too.
    told = str(refused.value).partition(":\n")[2]
    assert said in told
    assert "Traceback" not in told


def test_a_variable_that_cannot_be_is_refused_before_anything_starts(
    engine: ContainerEngine, variables: dict[str, str]
) -> None:
    mesh = ComposeMesh(engine, variables=variables)
    mesh.environment["PAGEMESH_PORT"] = "eight"
    with pytest.raises(AssertionError, match=r"ports|eight"):
        mesh.compose("up", "--detach")
    assert mesh.engine.run("ps", "--all", "--quiet", "--filter", f"name={mesh.project}") == ""
