"""A decode worker of a mesh that answers only what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pagemesh.membership.publisher import Publisher
from pagemesh.rpc.server import SERVER_OPTIONS
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, types_pb2
from pagemesh.worker.describe import make_canary
from tests.contract.router_harness import DEADLINE_S, Mesh
from tests.fakes.engine import FakeEngine
from tests.support.link.relay import Relay


class ScriptedDecode(decode_pb2_grpc.DecodeServicer):
    """Records what the router asks for and answers only what the test tells it to."""

    def __init__(self, info: types_pb2.WorkerInfo, publisher: Publisher) -> None:
        self.info = info
        self.publisher = publisher
        self.fingerprint = info.model_fingerprint
        """Of the model that new sessions are told of."""
        self.submits: list[decode_pb2.Submit] = []
        self.cancelled: list[int] = []
        self.draining = False
        self.outputs: asyncio.Queue[decode_pb2.RequestOutput] = asyncio.Queue()

    async def Session(  # noqa: N802  # the name of the RPC
        self,
        request_iterator: AsyncIterator[decode_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            yield decode_pb2.SessionResponse(
                opened=decode_pb2.SessionOpened(model_fingerprint=self.fingerprint)
            )
            while True:
                outputs = [await self.outputs.get()]
                # All that is there makes one message, so the router gets it at once.
                while not self.outputs.empty():
                    outputs.append(self.outputs.get_nowait())
                yield decode_pb2.SessionResponse(outputs=outputs, draining=self.draining)
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[decode_pb2.SessionRequest]) -> None:
        async for request in requests:
            if request.HasField("submit"):
                self.submits.append(request.submit)
            else:
                self.cancelled.append(request.cancel.handle)

    def answer(self, submit: decode_pb2.Submit, **fields: Any) -> None:
        self.outputs.put_nowait(decode_pb2.RequestOutput(handle=submit.handle, **fields))


@asynccontextmanager
async def scripted(
    mesh: Mesh, worker_id: str = "scripted", link: Relay | None = None
) -> AsyncIterator[ScriptedDecode]:
    """A member of the mesh that follows a script, behind a link if there is one."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    if link is not None:
        link.target, address = address, link.address
    engine = FakeEngine()
    layout = types_pb2.KvLayout(
        block_size=16, layer_count=2, kv_head_count=1, head_dim=2, dtype="float32"
    )
    info = types_pb2.WorkerInfo(
        worker_id=worker_id,
        epoch=1,
        role=types_pb2.WORKER_ROLE_DECODE,
        address=address,
        model_name="demo",
        model_fingerprint="fake",
        kv_layout=layout,
        block_count=64,
        max_model_len=512,
        max_num_seqs=8,
        canary=make_canary(engine.info),
    )
    publisher = Publisher(mesh.kvstore_address, info, engine, links=tuple)
    servicer = ScriptedDecode(info, publisher)
    decode_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
    await server.start()
    publisher.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while (await mesh.health())["decode_workers"] == 0:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        yield servicer
    finally:
        await publisher.close()
        await server.stop(None)
