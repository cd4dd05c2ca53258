"""Where the command looks for a mesh, and what it makes of what is there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemesh.cli.doctor.asking import examine
from pagemesh.cli.doctor.facts import Fault, Gateway, Lead
from pagemesh.cli.doctor.gateway import ask_gateway
from pagemesh.cli.doctor.leads import leads_of
from pagemesh.cli.doctor.local_mesh import local_leads
from pagemesh.cli.doctor.settings import DEFAULT_URL, DoctorConfig
from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.process import envoy_command
from pagemesh.v1 import process_pb2
from tests.support.certificates import Pair, make_certificate
from tests.support.ports import free_port
from tests.unit.cli.doctor.mesh_facts import WORKERS, info, kvstore, router, worker


@pytest.mark.parametrize(
    ("settings", "gateway", "kvstores"),
    [
        ({}, DEFAULT_URL, ()),
        ({"kvstore": "a:1,b:2"}, None, ("a:1", "b:2")),
        ({"url": "https://x", "kvstore": "a:1"}, "https://x", ("a:1",)),
    ],
)
def test_where_nothing_is_named_it_is_the_mesh_of_pagemesh_up(
    settings: dict[str, str], gateway: str | None, kvstores: tuple[str, ...]
) -> None:
    config = DoctorConfig(**settings)  # type: ignore[arg-type]
    assert (config.gateway, config.kvstores) == (gateway, kvstores)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"url": "127.0.0.1:8000"}, "--url"),
        ({"url": "http://x:99999"}, "--url"),
        ({"url": "http://x/v1"}, "--url"),
        ({"kvstore": "x"}, "--kvstore"),
        ({"timeout": 0.5}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(settings: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is "):
        DoctorConfig(**settings)  # type: ignore[arg-type]


def names(lead_source: process_pb2.DescribeResponse | None) -> set[tuple[str, str]]:
    assert lead_source is not None
    return {(lead.label, lead.address) for lead in leads_of(lead_source)}


def test_everybody_names_whom_they_know() -> None:
    workers = {(each.worker_id, each.address) for each in WORKERS}
    known = process_pb2.RouterDescription(kvstore_addresses=["kv:1"])
    assert names(router(*WORKERS, kvstore_addresses=list(known.kvstore_addresses)).said) == {
        *workers,
        ("kvstore", "kv:1"),
    }
    assert names(worker(info(), kvstore_addresses=["kv:1"]).said) == {("kvstore", "kv:1")}
    gone = info("decode-8", address="127.0.0.1:8")
    odd = info("decode-9", address="0.0.0.0:9")
    told = kvstore(
        *WORKERS,
        watchers=["router:1"],
        departed=[process_pb2.DepartedWorker(worker=gone)],
        refused=[process_pb2.RefusedWorker(worker=odd)],
    )
    assert names(told.said) == {*workers, ("router", "router:1"), ("decode-8", "127.0.0.1:8")}


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address at which the kernel takes connections, and nobody answers: as of a frozen process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def examined_at(address: str, seconds: float = 1.5) -> Fault | None:
    deadline = asyncio.get_running_loop().time() + seconds
    return (await examine(Lead(address, "kvstore", "a test"), deadline, (), None)).fault


async def test_why_nobody_answers_is_told_apart(deaf: str) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        stranger = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await asyncio.gather(
            examined_at(f"127.0.0.1:{free_port()}"),
            examined_at("nowhere.invalid:7000"),
            examined_at(stranger),
            examined_at(deaf),
        )
    assert tuple(found) == (Fault.NOBODY, Fault.NO_NAME, Fault.STRANGER, Fault.SILENT)


async def test_a_gateway_that_does_not_answer_is_waited_for_no_longer_than_it_may(
    deaf: str,
) -> None:
    began_at = time.monotonic()
    deadline = asyncio.get_running_loop().time() + 0.6
    config = DoctorConfig()
    gateway, router_behind = await ask_gateway(f"http://{deaf}", config, (), deadline)
    assert time.monotonic() - began_at < 2
    assert "did not answer" in gateway.fault
    assert router_behind is None


async def test_authorities_that_cannot_be_read_are_refused_by_the_flag() -> None:
    config = DoctorConfig(url="https://127.0.0.1:1", ca_cert="/nowhere.pem")
    with pytest.raises(ConfigError, match=r"^--ca-cert is '/nowhere\.pem'"):
        await ask_gateway("https://127.0.0.1:1", config, (), 1e9)


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_certificate(tmp_path, "authority")


def server_context(authority: Pair, folder: Path) -> ssl.SSLContext:
    pair = make_certificate(folder, "server", authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def gateway_with(authority: Pair, folder: Path, ca_cert: str | None) -> Gateway:
    """What is found at a server whose certificate the authority signed, and which speaks no gRPC."""
    context = server_context(authority, folder)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = DoctorConfig(url=url, ca_cert=ca_cert)
        deadline = asyncio.get_running_loop().time() + 4
        gateway, _ = await ask_gateway(url, config, (), deadline)
    return gateway


async def test_a_certificate_of_a_known_authority_tells_how_long_it_is_valid(
    authority: Pair, tmp_path: Path
) -> None:
    found = await gateway_with(authority, tmp_path, str(authority.certificate))
    assert found.certificate is not None
    assert found.certificate.fault == ""
    assert found.certificate.seconds_left == pytest.approx(2 * 24 * 3600, abs=120)
    assert found.health_status == 503


async def test_nothing_is_asked_of_a_server_that_is_not_to_be_trusted(
    authority: Pair, tmp_path: Path
) -> None:
    found = await gateway_with(authority, tmp_path, None)
    assert found.certificate is not None
    assert "certificate" in found.certificate.fault
    assert (found.answers, found.health_status, found.router_fault) == (False, None, None)


async def test_a_server_that_wants_a_certificate_of_clients_is_told_as_such(
    authority: Pair, tmp_path: Path
) -> None:
    context = server_context(authority, tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED

    # Not asyncio's server, which closes before it has sent why.
    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        shaking = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with shaking, contextlib.suppress(OSError):
            with contextlib.suppress(ssl.SSLError):
                shaking.do_handshake()
            # What the client has sent is read: a socket that is closed over it takes its own words back.
            shaking.shutdown(socket.SHUT_WR)
            while shaking.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(asyncio.to_thread(refuse, listener))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        config = DoctorConfig(url=url, ca_cert=str(authority.certificate))
        deadline = asyncio.get_running_loop().time() + 4
        found, _ = await ask_gateway(url, config, (), deadline)
        await serving
    assert found.fault == "it asks clients for a certificate, and pagemesh doctor has none"


def process_of(proc: Path, number: int, *words: str) -> None:
    folder = proc / str(number)
    folder.mkdir()
    (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())


def test_command_lines_tell_of_the_mesh_behind_a_gateway(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    for number, (port, first) in enumerate([(8000, 7100), (9000, 8100)]):
        routers = (f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}")
        command = envoy_command(GatewayConfig(routers=routers, port=port))
        process_of(proc, 100 * number + 1, *command)
        run = ("python", "-P", "-m", "pagemesh.cli", "router", "--kvstore")
        process_of(proc, 100 * number + 2, *run, f"127.0.0.1:{first - 100}", "--port", str(first))
    (proc / "self").mkdir()
    (proc / "7").mkdir()
    found = local_leads(8000, proc)
    assert [(lead.label, lead.address) for lead in found] == [
        ("router", "127.0.0.1:7100"),
        ("router", "127.0.0.1:7101"),
        ("kvstore", "127.0.0.1:7000"),
    ]
    assert local_leads(8001, proc) == []
