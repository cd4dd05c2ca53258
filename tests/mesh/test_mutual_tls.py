"""`pagemesh up --tls`: the parts speak TLS with each other, and know by certificates who may do what."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from pagemesh.identity.roles import REQUIRED, MeshRole
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, kvstore_pb2, kvstore_pb2_grpc
from tests.mesh.harness import Mesh, leftovers, running_mesh, until
from tests.mesh.secured import (
    ROLES,
    channel_to,
    files,
    health,
    metrics_page,
    ports,
    refusal_of,
    shown_as,
)
from tests.support.late_imports import openai
from tests.support.mesh_certificates import MeshAuthority, trust
from tests.support.metrics import metric

pytestmark = pytest.mark.costly

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    arguments = ("--tls", "--remote-prefill-min-tokens", "1", "--no-share-kv-memory")
    with running_mesh(tmp_path_factory.mktemp("mesh"), *arguments) as running:
        yield running


def ask(client: openai.OpenAI, question: str = QUESTION) -> str:
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": question}], temperature=0
    )
    return answer.choices[0].message.content or ""


def test_clients_see_no_difference(mesh: Mesh) -> None:
    assert ask(mesh.client()) == "The capital of France is Paris."
    assert "<html" in httpx.get(f"{mesh.url}/", timeout=5).text
    assert mesh.health()["prefill_workers"] == 1


def test_prompts_are_prefilled_by_others_through_tls(mesh: Mesh) -> None:
    ask(mesh.client(), "Who are you, and what else is there that you can say of yourself?")
    page = metrics_page(ports(mesh, "--metrics-port")["decode-0"], files(mesh, "supervisor"))
    assert metric(page, "pagemesh:kv_bytes_received_total") > 0
    assert metric(page, "pagemesh:remote_prefills_total", outcome="complete") > 0


def test_every_port_refuses_strangers(mesh: Mesh, tmp_path: Path) -> None:
    other = MeshAuthority(tmp_path / "other")
    ours = files(mesh, "supervisor")
    forged = other.issue("forged", *MeshRole)
    # It trusts the mesh; nobody there trusts it.
    Path(str(forged.mesh_ca)).write_bytes(Path(str(ours.mesh_ca)).read_bytes())
    addresses = ports(mesh, "--port")
    assert set(addresses) == {"router", "kvstore", "prefill-0", "decode-0"}
    for part, address in addresses.items():
        assert health(address, ROLES[part], shown_as(ours, MeshRole.HEALTH)) == "SERVING"
        assert health(address, ROLES[part], None) == "UNAVAILABLE", part
        assert health(address, ROLES[part], shown_as(forged, MeshRole.HEALTH)) == "UNAVAILABLE", (
            part
        )
    for address in ports(mesh, "--metrics-port").values():
        assert "process_cpu_seconds_total" in metrics_page(address, ours)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}/metrics", timeout=5)
        with pytest.raises(httpx.TransportError):
            metrics_page(address, forged)


def test_a_router_cannot_publish_and_a_worker_cannot_submit(mesh: Mesh) -> None:
    addresses = ports(mesh, "--port")
    router = shown_as(files(mesh, "router"), MeshRole.ROUTER)
    prefill = shown_as(files(mesh, "prefill-0"), MeshRole.PREFILL)
    with channel_to(addresses["kvstore"], MeshRole.KVSTORE, router) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        assert refusal_of(lambda: list(stub.Publish(iter(()), timeout=5))) == (
            "PERMISSION_DENIED: router.pagemesh may not call /pagemesh.v1.KvStore/Publish"
        )
    with channel_to(addresses["kvstore"], MeshRole.KVSTORE, prefill) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        known = shown_as(files(mesh, "router"), MeshRole.ROUTER)
        with channel_to(addresses["kvstore"], MeshRole.KVSTORE, known) as asking:
            snapshot = kvstore_pb2_grpc.KvStoreStub(asking).Snapshot(
                kvstore_pb2.SnapshotRequest(), timeout=5
            )
        decode = next(
            worker.worker for worker in snapshot.workers if worker.worker.worker_id == "decode-0"
        )
        decode.worker_id = "impostor"
        request = kvstore_pb2.RegisterRequest(worker=decode)
        assert refusal_of(lambda: stub.Register(request, timeout=5)) == (
            "PERMISSION_DENIED: prefill.pagemesh, worker.pagemesh may not register as a decode worker"
        )
    with channel_to(addresses["decode-0"], MeshRole.DECODE, prefill) as channel:
        session = decode_pb2_grpc.DecodeStub(channel).Session
        submit = decode_pb2.SessionRequest(submit=decode_pb2.Submit(handle=1))
        assert refusal_of(lambda: list(session(iter([submit]), timeout=5))) == (
            "PERMISSION_DENIED: prefill.pagemesh, worker.pagemesh may not call"
            " /pagemesh.v1.Decode/Session"
        )
    page = metrics_page(ports(mesh, "--metrics-port")["decode-0"], files(mesh, "supervisor"))
    assert metric(page, "pagemesh:calls_refused_total", roles="prefill,worker") == 1


def test_certificates_are_replaced_under_load_without_a_failed_request(
    mesh: Mesh, tmp_path: Path
) -> None:
    """All of them, by those of another authority, as whoever changes authorities does it."""
    former, successor = files(mesh, "supervisor"), MeshAuthority(tmp_path / "successor")
    old = shown_as(former, MeshRole.HEALTH)
    answers, failures, stop = [], [], threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                answers.append(ask(mesh.client()))
            except openai.OpenAIError as error:
                failures.append(error)

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        parts = {part: files(mesh, part) for part in ROLES}
        for settings in parts.values():
            path = Path(str(settings.mesh_ca))
            both = path.read_bytes() + successor.authority.pem
            path.with_suffix(".new").write_bytes(both)
            path.with_suffix(".new").replace(path)
        for part, settings in parts.items():
            successor.authority.issue(settings, REQUIRED[ROLES[part]])
            trust(settings, successor)
        ours = shown_as(successor.issue("ours", MeshRole.HEALTH), MeshRole.HEALTH)
        for part, address in ports(mesh, "--port").items():
            until(lambda a=address, p=part: health(a, ROLES[p], ours) == "SERVING", part)  # type: ignore[misc]
            assert health(address, ROLES[part], old) == "UNAVAILABLE"
        # Connections made anew: all of the kvstore's, and those of a worker that is started again.
        mesh.kill("kvstore")
        num_before = len(answers)
        until(lambda: len(answers) > num_before + 20, "more answers")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert set(answers) == {"The capital of France is Paris."}
    until(
        lambda: (
            len(mesh.log("decode-0", "registered")) > 1
            and len(mesh.log("prefill-0", "registered")) > 1
        ),
        "workers are back in the mesh, with the certificates of now",
    )
    assert mesh.log("decode-0", "certificates_replaced")


def test_keys_are_nobody_elses_and_go_with_the_mesh(tmp_path: Path) -> None:
    with running_mesh(tmp_path, "--tls", "--prefill", "0") as running:
        key = Path(str(files(running, "decode-0").mesh_key))
        keys = sorted(path.name for path in key.parent.glob("*.key"))
        assert keys == [
            "decode-0.key",
            "gateway.key",
            "kvstore.key",
            "router.key",
            "supervisor.key",
        ]
        assert key.parent.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in key.parent.iterdir()} == {0o600}
        remains = leftovers(running)
    assert not key.parent.exists()
    assert remains() == []


def test_an_expired_certificate_is_refused_in_one_sentence(tmp_path: Path) -> None:
    authority = MeshAuthority(tmp_path / "mesh")
    settings = authority.issue("kvstore", MeshRole.KVSTORE, lifetime=timedelta(minutes=-1))
    command = [sys.executable, "-P", "-m", "pagemesh.cli", "kvstore"]
    for flag in ("mesh_cert", "mesh_key", "mesh_ca"):
        command += [f"--{flag.replace('_', '-')}", getattr(settings, flag)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        f"pagemesh kvstore: --mesh-cert is '{settings.mesh_cert}', which expired on 20"
    )
