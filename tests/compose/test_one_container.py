"""The image of a whole mesh takes the place of a server: as others' images are run, stopped, and looked after."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.asking import QUESTIONS, ask
from tests.compose.container_engine import ContainerEngine
from tests.compose.one_container import OneContainer, build, started
from tests.compose.public_images import host_of_containers
from tests.hygiene.tree import ROOT
from tests.support.late_imports import openai

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

DEMO = ROOT / "models/demo"
HUB_ID = "acme/demo"
GRACE_S = 10.0
"""That `docker stop` gives."""


@pytest.fixture(scope="module")
def image(engine: ContainerEngine, build_arguments: dict[str, str]) -> str:
    name = "pagemesh-test-serve"
    build(engine, name, build_arguments)
    return name


@pytest.fixture
def container(engine: ContainerEngine, image: str) -> Iterator[OneContainer]:
    """Without a flag."""
    with started(engine, image) as running:
        running.wait_until_healthy()
        yield running


def require_an_answer(container: OneContainer) -> None:
    container.wait_until_healthy()
    client = container.client()
    assert ask(client, QUESTIONS[0], 8).startswith("The capital of France is Paris")


def cache_of_somebody(folder: Path) -> Path:
    """A cache of the hub with one model, which another user has for itself."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    model = folder / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = model / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(revision)
    for path in DEMO.iterdir():
        if path.suffix in (".json", ".jinja", ".safetensors"):
            shutil.copy(path, snapshot)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


WAYS = {
    "guides": ("--ipc=host", "--shm-size=1g"),
    "limits": ("--memory=4g", "--cpus=1.5"),
    "nobody, nothing allowed": (
        "--user=1000:1000",
        "--read-only",
        "--tmpfs=/tmp",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
    ),
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_it_answers_however_it_is_run(
    engine: ContainerEngine, image: str, options: tuple[str, ...]
) -> None:
    with started(engine, image, options, ("--model", "demo")) as running:
        require_an_answer(running)
        assert running.stop() < GRACE_S
        assert running.state()["ExitCode"] == 0


def test_it_reads_a_cache_whoever_owns_it(
    engine: ContainerEngine, image: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files to others")
    cache = cache_of_somebody(tmp_path)
    mounted = ("--volume", f"{cache}:/root/.cache/huggingface", "--env", "HF_HUB_OFFLINE=1")
    with started(engine, image, mounted, ("--model", HUB_ID)) as running:
        running.wait_until_healthy()
        assert [each.id for each in running.client().models.list()] == [HUB_ID]


def test_the_demo_model_is_in_it_once(container: OneContainer) -> None:
    require_an_answer(container)
    found = container.execute("find", "/", "-xdev", "-name", "model.safetensors").split()
    assert found == ["/opt/pagemesh/models/demo/model.safetensors"]


def test_docker_stop_ends_streams_with_a_reason(engine: ContainerEngine, image: str) -> None:
    with started(engine, image, flags=("--grace-period", "0.2")) as container:
        container.wait_until_healthy()
        chunks = container.client().chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTIONS[1]}],
            stream=True,
            max_tokens=1900,
            extra_body={"ignore_eos": True},
        )
        next(chunks)
        ended = threading.Thread(target=container.stop)
        ended.start()
        with pytest.raises(openai.APIError, match="stopping"):
            for _ in chunks:
                pass
        ended.join(60)
        assert container.state()["ExitCode"] == 0


def test_docker_stop_does_not_wait_for_a_hub(engine: ContainerEngine, image: str) -> None:
    # It takes connections, and says nothing.
    with socket.create_server((host_of_containers(engine), 0)) as hub:
        hub.settimeout(60)
        address = "http://{}:{}".format(*hub.getsockname())
        hanging = ("--env", f"HF_ENDPOINT={address}")
        with started(engine, image, hanging, ("--model", HUB_ID)) as running, hub.accept()[0]:
            assert running.stop() < GRACE_S
            assert running.state()["ExitCode"] == 128 + 15


def test_without_a_folder_for_sockets_it_says_what_to_do(
    engine: ContainerEngine, image: str
) -> None:
    with started(engine, image, ("--read-only",)) as running:
        assert running.exit_code(within=60) == 1
        assert "mount one at /tmp" in running.logs()


def test_what_dies_comes_back_and_leaves_nothing(container: OneContainer) -> None:
    for part in ("decode", "pagemesh.gateway.supervisor", "decode"):
        container.wait_until_started_again(part, container.kill_part(part))
    require_an_answer(container)
    # What the last one had started may just be ending.
    assert len([each for each in container.processes() if each[1] == "Z"]) <= 1


def test_it_ends_when_a_part_cannot_come_back(container: OneContainer) -> None:
    container.execute("rm", "-r", "/opt/pagemesh/models/demo")
    container.kill_part("decode")
    assert container.exit_code(within=300) == 1
