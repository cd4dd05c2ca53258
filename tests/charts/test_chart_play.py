"""The rendered workloads of the CPU demo, started for real with podman: a client gets an answer, and failures have words."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.charts.podman import Podman, adapted, workload
from tests.charts.rendering import CHART, ROLES, Rendered, values_of
from tests.support.needs import lack

# The images must be of the present code.
pytestmark = pytest.mark.containers

DEMO = CHART / "ci/demo-values.yaml"
# Podman's names: the Deployment, its pod, the container.
PODS = {
    "kvstore": "kvstore",
    "router": "router",
    "prefill": "prefill-demo",
    "decode-1": "decode-demo",
    "decode-2": "decode-demo",
    "gateway": "gateway",
}
START_DEADLINE_S = 90
QUESTION = {
    "model": "demo",
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"after {START_DEADLINE_S} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if shutil.which("podman") is None:
        lack("container engine", "podman is not installed")
    podman = Podman(tmp_path_factory.mktemp("podman"))
    for role in ROLES:
        image = Rendered().container(role)["image"]
        if not podman.has(image):
            lack("container engine", f"neither podman nor a Docker engine has the image {image}")
    made = podman.run("network", "create", podman.network, check=False)
    if made.returncode != 0:
        lack("container engine", f"podman can make no network here: {made.stderr.strip()}")
    yield podman
    podman.run("network", "rm", "-f", podman.network, check=False)


def can_limit(podman: Podman, image: str) -> bool:
    """Whether the machine's cgroups limit what a container takes."""
    words = ("run", "--rm", "--no-healthcheck", "--memory", "256m", "--cpus", "1", image, "--help")
    return podman.run(*words, check=False).returncode == 0


class Mesh:
    """The mesh of the demo as pods."""

    def __init__(self, podman: Podman, rendered: Rendered) -> None:
        self.podman = podman
        self.rendered = rendered
        self.addresses = dict(zip(PODS, podman.addresses(), strict=False))
        self.started: list[str] = []

    def start(self) -> None:
        limits = can_limit(self.podman, self.rendered.container("kvstore")["image"])
        hosts = {
            "mesh-pagemesh-kvstore-0.mesh-pagemesh-kvstore": self.addresses["kvstore"],
            "mesh-pagemesh-router": self.addresses["router"],
        }
        for name, source in PODS.items():
            found = workload(self.rendered, source)
            address = self.addresses[name]
            self.started.append(name)
            self.podman.play(adapted(found, name, address, hosts, can_limit=limits), address)

    def container_name(self, name: str) -> str:
        pod = name if name == "kvstore" else f"{name}-pod"
        listed = self.podman.run("ps", "-a", "--format", "{{.Names}}").stdout.split()
        role = name.split("-")[0]
        # Newer podmans number the pods of a Deployment.
        [found] = [each for each in listed if each in (f"{pod}-{role}", f"{pod}-0-{role}")]
        return found

    def container(self, name: str) -> dict[str, Any]:
        return self.podman.container(self.container_name(name))

    @property
    def url(self) -> str:
        return f"http://{self.addresses['gateway']}:8000"

    def is_ready(self) -> bool:
        try:
            answer = httpx.get(f"{self.url}/health", timeout=5, trust_env=False)
        except httpx.TransportError:
            return False
        if answer.status_code != 200:
            return False
        health = answer.json()
        return (health["decode_workers"], health["prefill_workers"]) == (2, 1)

    def ask(self) -> str:
        answer = httpx.post(
            f"{self.url}/v1/chat/completions", json=QUESTION, timeout=60, trust_env=False
        )
        answer.raise_for_status()
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def logs(self) -> str:
        return "\n".join(
            f"{name}: {self.podman.logs(self.container_name(name))[-1500:]}"
            for name in self.started
        )

    def close(self) -> None:
        listed = self.podman.run("pod", "ps", "--format", "{{.Name}}").stdout.split()
        ours = [
            each
            for name in self.started
            for each in listed
            if each.removesuffix("-0") in (name, f"{name}-pod")
        ]
        self.podman.run("pod", "rm", "-f", "-t", "15", *ours, check=False)


@pytest.fixture(scope="module")
def mesh(podman: Podman) -> Iterator[Mesh]:
    mesh = Mesh(podman, Rendered(values_of(DEMO)))
    try:
        mesh.start()
        try:
            wait_until(mesh.is_ready, "not every worker serves")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{mesh.logs()}") from None
        yield mesh
    finally:
        mesh.close()


def test_a_client_gets_an_answer_from_the_rendered_workloads(mesh: Mesh) -> None:
    assert "Paris" in mesh.ask()


def test_containers_run_as_the_chart_says(mesh: Mesh) -> None:
    for name in PODS:
        container = mesh.container(name)
        assert container["Config"]["User"] in ("65532", "65532:65532")
        assert container["HostConfig"]["ReadonlyRootfs"] is True
        assert container["EffectiveCaps"] in (None, [])


def test_a_decode_pod_that_is_killed_costs_nothing(mesh: Mesh) -> None:
    mesh.podman.run("kill", "-s", "KILL", mesh.container_name("decode-1"))
    assert "Paris" in mesh.ask()


@pytest.mark.parametrize(
    ("role", "source", "words"),
    [
        (
            "decode-demo",
            "/model/nowhere",
            "--model is '/model/nowhere', but there is no such folder",
        ),
        ("router", "/model/nowhere", "--model is '/model/nowhere', but there is no such folder"),
    ],
)
def test_a_missing_model_is_the_last_word_of_its_pod(
    podman: Podman, tmp_path: Path, role: str, source: str, words: str
) -> None:
    models = [{"name": "demo", "source": {"type": "bundled", "path": source}}]
    rendered = Rendered({**values_of(DEMO), "models": models})
    assert last_words(podman, workload(rendered, role)) == f"pagemesh {role.split('-')[0]}: {words}"


def test_a_missing_gpu_is_the_last_word_of_its_pod(podman: Podman) -> None:
    rendered = Rendered({**values_of(DEMO), "decode": {"gpus": 1}, "image": {"cudaTagSuffix": ""}})
    said = last_words(podman, workload(rendered, "decode-demo"))
    assert said.startswith("pagemesh decode: --device is 'cuda'")


def last_words(podman: Podman, found: dict[str, Any]) -> str:
    """The last line of what a container says that is started alone, and that must end by itself."""
    container = found["spec"]["template"]["spec"]["containers"][0]
    variables = [
        word
        for each in container["env"]
        for word in ("-e", f"{each['name']}={each.get('value', '127.0.0.1')}")
    ]
    words = [
        word.replace("$(POD_IP)", "127.0.0.1").replace("$(POD_NAME)", "pod")
        for word in container["args"]
    ]
    options = ["--rm", "--no-healthcheck", "--read-only", "--tmpfs", "/tmp", *variables]
    done = podman.run("run", *options, container["image"], *words, check=False)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]
