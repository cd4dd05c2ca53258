"""What processes say of themselves, from their first moment to their last, and what workers find of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest

from pagemesh.config import ServerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.errors import PagemeshError
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.server import GrpcServer
from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import kvstore_pb2, process_pb2, process_pb2_grpc, types_pb2
from tests.contract.kvstore_harness import connected, running_kvstore
from tests.contract.router_harness import Mesh, running_mesh
from tests.support.ports import free_port
from tests.unit.kvstore.builders import make_worker

LIMIT_S = 5.0


async def describe(address: str) -> process_pb2.DescribeResponse:
    async with open_channel(address) as channel:
        stub: process_pb2_grpc.ProcessAsyncStub = process_pb2_grpc.ProcessStub(channel)
        return await stub.Describe(process_pb2.DescribeRequest(), timeout=LIMIT_S)


@asynccontextmanager
async def peers_at(address: str) -> AsyncIterator[process_pb2_grpc.PeersAsyncStub]:
    async with open_channel(address) as channel:
        yield process_pb2_grpc.PeersStub(channel)


def reach(*peers: tuple[str, str], seconds: float = 2.0) -> process_pb2.ReachRequest:
    request = process_pb2.ReachRequest(
        peers=[types_pb2.PeerWorker(worker_id=name, address=address) for name, address in peers]
    )
    request.timeout.FromTimedelta(timedelta(seconds=seconds))
    return request


async def test_a_process_says_how_far_it_is_also_while_it_refuses_everything_else() -> None:
    server = GrpcServer(ServerConfig(grace_period=2.0), [])
    leaving = asyncio.Event()

    async def leave() -> None:
        await leaving.wait()

    server.on_drain(leave)
    address = await server.start()
    loading = await describe(address)
    assert loading.state == process_pb2.PROCESS_STATE_STARTING
    assert (loading.address, loading.WhichOneof("part")) == (address, None)
    await server.set_serving()
    assert (await describe(address)).state == process_pb2.PROCESS_STATE_SERVING
    closing = asyncio.create_task(server.close())
    await asyncio.sleep(0)
    assert (await describe(address)).state == process_pb2.PROCESS_STATE_DRAINING
    leaving.set()
    await closing


async def test_every_kind_of_process_says_what_it_is_and_what_it_sees() -> None:
    async with running_mesh(decode=1, prefill=1) as mesh:
        router = await describe(mesh.address)
        kvstore = await describe(mesh.kvstore_address)
        worker = await describe(mesh.workers["decode-0"].server.address)
        assert len({each.contract_digest for each in (router, kvstore, worker)}) == 1
        assert {each.state for each in (router, kvstore, worker)} == {
            process_pb2.PROCESS_STATE_SERVING
        }

        assert router.router.is_following
        assert [model.name for model in router.router.models] == ["demo"]
        seen = {each.worker.worker_id: each for each in router.router.workers}
        assert seen["decode-0"].session == process_pb2.SESSION_STATE_OPEN
        assert seen["prefill-0"].session == process_pb2.SESSION_STATE_UNSPECIFIED

        assert kvstore.kvstore.index == "memory"
        assert {each.worker.worker_id for each in kvstore.kvstore.members} == set(seen)
        assert all(each.publishes_here for each in kvstore.kvstore.members)
        assert list(kvstore.kvstore.watchers) == [mesh.address]

        assert worker.worker.worker.worker_id == "decode-0"
        assert worker.worker.membership == process_pb2.MEMBERSHIP_JOINED
        assert worker.package_versions["torch"]


async def test_a_worker_that_left_is_remembered_until_it_is_back() -> None:
    async with running_mesh(decode=2) as mesh:
        await mesh.remove("decode-1")
        left = (await describe(mesh.kvstore_address)).kvstore.departed
        assert [each.worker.worker_id for each in left] == ["decode-1"]
        assert left[0].age.ToTimedelta() < timedelta(seconds=LIMIT_S)
        await mesh.add(DECODE_ROLE, "decode-1")
        assert not (await describe(mesh.kvstore_address)).kvstore.departed


async def test_who_was_refused_is_remembered_with_the_reason() -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await stub.Register(kvstore_pb2.RegisterRequest(worker=make_worker("decode-0")), timeout=5)
        other = make_worker("decode-1", fingerprint="model-b", address="127.0.0.1:7002")
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Register(kvstore_pb2.RegisterRequest(worker=other), timeout=5)
        (refused,) = (await describe(address)).kvstore.refused
    assert (refused.worker.worker_id, refused.reason) == ("decode-1", "MODEL_MISMATCH")
    assert "'decode-0'" in refused.message


async def test_a_worker_says_why_it_is_not_in_the_mesh(mesh: Mesh) -> None:
    address = mesh.workers["decode-0"].server.address
    await mesh.kvstore.close()
    deadline = asyncio.get_running_loop().time() + 10
    while (told := (await describe(address)).worker).membership != process_pb2.MEMBERSHIP_AWAY:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    assert told.kvstore_address == mesh.kvstore_address
    assert told.membership_error


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(decode=1, prefill=1) as running:
        yield running


async def test_a_worker_says_whom_it_reaches_and_why_not_whom_it_does_not(mesh: Mesh) -> None:
    own = mesh.workers["decode-0"].server.address
    other = mesh.workers["prefill-0"].server.address
    wanted = (
        ("prefill-0", other),
        ("gone", f"127.0.0.1:{free_port()}"),
        ("prefill-1", other),
        ("kvstore", mesh.kvstore_address),
    )
    async with peers_at(own) as stub:
        answer = await stub.Reach(reach(*wanted), timeout=LIMIT_S)
    found = {peer.worker_id: (peer.answered_by, bool(peer.error)) for peer in answer.peers}
    assert found == {
        "prefill-0": ("prefill-0", False),
        "gone": ("", True),
        "prefill-1": ("prefill-0", False),
        "kvstore": ("", True),
    }
    assert "Connection refused" in answer.peers[1].error


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (reach(*[("a", "127.0.0.1:1")] * 65), "peers"),
        (reach(seconds=0), "timeout"),
        (reach(seconds=11), "timeout"),
    ],
    ids=["too many", "no time", "too long"],
)
async def test_what_a_worker_is_asked_to_try_is_bounded(
    mesh: Mesh, request_: process_pb2.ReachRequest, param: str
) -> None:
    async with peers_at(mesh.workers["decode-0"].server.address) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Reach(request_, timeout=LIMIT_S)
    error = from_rpc_error(raised.value)
    assert isinstance(error, PagemeshError)
    assert (error.grpc_code, error.param) == ("INVALID_ARGUMENT", param)


async def test_routers_reach_nobody_for_their_clients(mesh: Mesh) -> None:
    async with peers_at(mesh.address) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Reach(reach(("x", "127.0.0.1:1")), timeout=LIMIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_kv_that_did_not_come_is_told_with_its_sender(mesh: Mesh) -> None:
    await mesh.workers["prefill-0"].kill()
    answer = await mesh.completions(
        {"model": "demo", "prompt": list(range(10, 74)), "max_tokens": 1}
    )
    assert answer.status == 200
    address = mesh.workers["decode-0"].server.address

    def failures(told: process_pb2.DescribeResponse) -> list[str]:
        return [failure.worker_id for failure in told.worker.kv_failures]

    assert failures(await describe(address)) == ["prefill-0"]
