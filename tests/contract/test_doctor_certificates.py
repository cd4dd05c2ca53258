"""What `pagemesh doctor` makes of processes that speak TLS with each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pagemesh.cli.doctor.asking import examine
from pagemesh.cli.doctor.checks import certificates, processes
from pagemesh.cli.doctor.facts import Examined, Facts, Fault, Lead
from pagemesh.config import ServerConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.server import GrpcServer
from tests.support.mesh_certificates import MeshAuthority


@pytest.fixture
def authority(tmp_path: Path) -> MeshAuthority:
    return MeshAuthority(tmp_path / "mesh")


@pytest.fixture
async def kvstore(authority: MeshAuthority) -> AsyncIterator[str]:
    """The address of a server whose certificate, of a day, says that it is a kvstore."""
    server = GrpcServer(
        ServerConfig(grace_period=0.1), [], identity=authority.identity(MeshRole.KVSTORE)
    )
    address = await server.start()
    await server.set_serving()
    yield address
    await server.close()


async def look(address: str, identity: Identity | None, label: str = "kvstore") -> Examined:
    deadline = asyncio.get_running_loop().time() + 3
    return await examine(Lead(address, label, "a test"), deadline, (), identity)


async def test_a_certificate_for_health_checks_is_enough(
    authority: MeshAuthority, kvstore: str
) -> None:
    found = await look(kvstore, authority.identity(MeshRole.HEALTH))
    assert (found.fault, found.serves) == (None, True)
    told = certificates.check(Facts(processes=[found]))
    assert [(each.status.word, each.subject) for each in told.findings] == [("warning", "kvstore")]
    assert "Its certificate expires in 1.0 days" in told.findings[0].what


async def test_one_of_another_authority_is_told_as_such(
    authority: MeshAuthority, kvstore: str, tmp_path: Path
) -> None:
    stranger = MeshAuthority(tmp_path / "other").identity(MeshRole.HEALTH)
    found = await look(kvstore, stranger)
    assert found.fault is Fault.UNTRUSTED
    told = processes.check(Facts(processes=[found]))
    assert "--mesh-ca" in told.findings[0].advice


async def test_one_that_names_another_role_is_not_taken_for_whom_is_meant(
    authority: MeshAuthority, kvstore: str
) -> None:
    found = await look(kvstore, authority.identity(MeshRole.HEALTH), label="router")
    assert found.fault is Fault.UNTRUSTED


async def test_one_that_does_not_allow_the_question_is_told_as_such(
    authority: MeshAuthority, kvstore: str
) -> None:
    found = await look(kvstore, authority.identity(MeshRole.DECODE, MeshRole.WORKER))
    assert found.fault is Fault.NOT_ALLOWED


async def test_without_a_certificate_the_advice_is_to_give_one(kvstore: str) -> None:
    found = await look(kvstore, None)
    assert found.fault is Fault.STRANGER
    told = processes.check(Facts(processes=[found]))
    assert "--mesh-cert" in told.findings[0].advice
