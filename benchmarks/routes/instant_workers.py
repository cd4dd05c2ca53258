"""Decode workers that answer at once, in a process of their own: what a router costs is then the router's alone.

They register with the kvstore, beat and tell which blocks they hold, as real ones do. The first token of a
request comes at once, the others at a set pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from multiprocessing.connection import Connection
from typing import Final

import grpc.aio

from pagemesh.cache.block_hash import (
    CANARY_VERSION,
    canary_token_ids,
    digest_hashes,
    hash_blocks,
    root_hash,
)
from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, kvstore_pb2, kvstore_pb2_grpc, types_pb2

FINGERPRINT: Final = "instant"
BLOCK_SIZE: Final = 16
DTYPE: Final = "bfloat16"
MAX_MODEL_LEN: Final = 131_072
_NUM_BLOCKS: Final = 1 << 17
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class InstantSettings:
    """What the process is told."""

    kvstore: str
    model_name: str
    num_workers: int
    token_digest: bytes
    """Of the canary's token ids, as the router's tokenizer makes them."""
    held: dict[int, list[bytes]] = field(default_factory=dict)
    """Names of cached blocks, by the worker's number."""
    token_s: float = 0.005
    """Between two tokens of a request for more than one."""
    token_ids: tuple[int, ...] = (300,)
    """What they generate, over and over."""


def run(parent: Connection, settings: InstantSettings) -> None:
    """Body of the process: says that all are members, and serves until it is asked anything."""
    asyncio.run(_serve(parent, settings))


async def _serve(parent: Connection, settings: InstantSettings) -> None:
    server = grpc.aio.server(options=channel_options())
    decode = _Decode(settings.token_s, settings.token_ids)
    decode_pb2_grpc.add_DecodeServicer_to_server(decode, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(settings.kvstore, options=channel_options()) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        members = [
            asyncio.create_task(
                _be_member(stub, _info(number, port, settings), settings.held.get(number, ()))
            )
            for number in range(settings.num_workers)
        ]
        gone = asyncio.create_task(asyncio.to_thread(_until_closed, parent))
        parent.send(None)
        await asyncio.wait([gone, *members], return_when=asyncio.FIRST_COMPLETED)
        for member in members:
            member.cancel()
        for result in await asyncio.gather(*members, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
    await server.stop(None)


def _until_closed(parent: Connection) -> None:
    while True:
        try:
            parent.recv()
        except (EOFError, ConnectionResetError):
            return


def _info(number: int, port: int, settings: InstantSettings) -> types_pb2.WorkerInfo:
    return types_pb2.WorkerInfo(
        worker_id=f"decode-{number}",
        epoch=1,
        role=types_pb2.WORKER_ROLE_DECODE,
        address=f"127.0.0.1:{port}",
        model_name=settings.model_name,
        model_fingerprint=FINGERPRINT,
        kv_layout=types_pb2.KvLayout(
            block_size=BLOCK_SIZE, layer_count=32, kv_head_count=8, head_dim=128, dtype=DTYPE
        ),
        block_count=_NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=64,
        canary=types_pb2.Canary(
            version=CANARY_VERSION,
            token_digest=settings.token_digest,
            block_digest=digest_hashes(name_blocks(canary_token_ids(BLOCK_SIZE))),
        ),
    )


def name_blocks(token_ids: Sequence[int]) -> list[bytes]:
    """Hashes of full blocks as these workers compute them."""
    return hash_blocks(root_hash(FINGERPRINT, BLOCK_SIZE, DTYPE), token_ids, BLOCK_SIZE)


async def _be_member(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, info: types_pb2.WorkerInfo, held: Sequence[bytes]
) -> None:
    response = await stub.Register(kvstore_pb2.RegisterRequest(worker=info), timeout=_TIMEOUT_S)
    call = stub.Publish()
    sequence = count(1)

    async def publish(request: kvstore_pb2.PublishRequest) -> None:
        request.worker_id, request.epoch = info.worker_id, info.epoch
        request.sequence = next(sequence)
        await call.write(request)

    stored = kvstore_pb2.BlocksStored(block_hashes=b"".join(held))
    await publish(kvstore_pb2.PublishRequest(stored=stored))
    while True:
        await publish(kvstore_pb2.PublishRequest(load=_load()))
        await asyncio.sleep(response.heartbeat_interval_ms / 1000)


def _load() -> types_pb2.WorkerLoad:
    """Of an idle worker that has computed prompts, at about the speed of a large GPU."""
    return types_pb2.WorkerLoad(
        free_block_count=_NUM_BLOCKS,
        prefill_rate=types_pb2.PrefillRate(
            seconds_per_token=5e-5,
            seconds_per_pair=1e-10,
            seconds_per_step=5e-3,
            step_token_count=8192,
            mean_pair_count=1000.0,
        ),
    )


class _Decode(decode_pb2_grpc.DecodeServicer):
    """One session for each of the workers that the router knows."""

    def __init__(self, token_s: float, token_ids: Sequence[int]) -> None:
        self._token_s = token_s
        self._token_ids = token_ids

    async def Session(  # noqa: N802  # the name of the RPC
        self,
        request_iterator: AsyncIterator[decode_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[decode_pb2.SessionRequest, decode_pb2.SessionResponse],
    ) -> AsyncGenerator[decode_pb2.SessionResponse, None]:
        """First tokens at once; then one message a step, with a token for every request."""
        batch = _Batch(self._token_s, self._token_ids)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(batch.take(request_iterator))
            tasks.create_task(batch.step_forever())
            opened = decode_pb2.SessionOpened(model_fingerprint=FINGERPRINT)
            yield decode_pb2.SessionResponse(opened=opened)
            while True:
                yield decode_pb2.SessionResponse(outputs=await batch.ready.get())


class _Batch:
    """The requests of one session."""

    def __init__(self, token_s: float, token_ids: Sequence[int]) -> None:
        self.ready: asyncio.Queue[list[decode_pb2.RequestOutput]] = asyncio.Queue()
        self._token_s = token_s
        self._next_id = cycle(token_ids)
        # Tokens that are still to come, by handle.
        self._left: dict[int, int] = {}
        self._has_work = asyncio.Event()

    async def take(self, requests: AsyncIterator[decode_pb2.SessionRequest]) -> None:
        """What the router asks for, until it goes."""
        async for request in requests:
            submit = request.submit
            if request.HasField("submit"):
                left = submit.sampling.max_tokens
                first = self._output(submit.handle, left)
                first.prompt_usage.prompt_token_count = len(submit.prompt_token_ids)
                first.kv_outcome.path = types_pb2.KV_PATH_LOCAL
                self.ready.put_nowait([first])
                if left > 1:
                    self._left[submit.handle] = left - 1
                    self._has_work.set()
            else:
                self._left.pop(request.cancel.handle, None)

    async def step_forever(self) -> None:
        """A step every so often, by the clock: what comes late makes the next pause shorter."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._has_work.wait()
            due = max(due + self._token_s, loop.time())
            await asyncio.sleep(due - loop.time())
            self.ready.put_nowait(
                [self._output(handle, left) for handle, left in self._left.items()]
            )
            self._left = {handle: left - 1 for handle, left in self._left.items() if left > 1}
            if not self._left:
                self._has_work.clear()

    def _output(self, handle: int, left: int) -> decode_pb2.RequestOutput:
        """A token; the last one of so many that are left."""
        unended, last = types_pb2.FINISH_REASON_UNSPECIFIED, types_pb2.FINISH_REASON_LENGTH
        return decode_pb2.RequestOutput(
            handle=handle,
            token_ids=[next(self._next_id)],
            finish_reason=last if left == 1 else unended,
        )
