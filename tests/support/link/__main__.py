"""The process: `python -m tests.support.link <address>`.

Prints one JSON line with its two addresses, of which `grpc` spoils KV streams and `tcp` passes on bytes,
and then answers each JSON line on stdin with one on stdout. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import grpc

from pagemesh.rpc.channels import SHARED_OPTIONS, channel_options
from tests.support.link.faults import (
    AbortedError,
    Fault,
    SeveredError,
    Spoiler,
    draw_fault,
)
from tests.support.link.relay import Relay

SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 65_535),)

Context = grpc.aio.ServicerContext[Any, Any]


class KvLink(grpc.GenericRpcHandler):
    """Forwards calls with a stream of responses, whatever their method, and spoils the streams."""

    def __init__(self, upstream: str) -> None:
        # Windows that hold hardly a message: a sender is not ahead of what was passed on.
        options = [*channel_options(), ("grpc.http2.bdp_probe", 0), *SMALL_WINDOW]
        self._channel = grpc.aio.insecure_channel(upstream, options=options)
        self._spoiler = Spoiler(self._note)
        self._armed: deque[Fault] = deque()
        self._draws = random.Random(0)
        self._share = 0.0
        self._longest_stall = 0.0
        self.counts: Counter[str] = Counter()
        self.relay: Relay | None = None
        """In front of this server; for connections to break."""

    def arm(self, fault: Fault) -> None:
        """Have one of the next streams go wrong, in the order of arming."""
        self._armed.append(fault)

    def plan(self, seed: int, share: float, longest_stall: float) -> None:
        """From now on, such a share of the streams goes wrong, by chance."""
        self._draws, self._share, self._longest_stall = random.Random(seed), share, longest_stall

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """A handler for any method."""

        async def forward(request: bytes, context: Context) -> AsyncGenerator[bytes]:
            messages = self._forward(handler_call_details.method, request, context)
            async with aclosing(messages):
                async for message in messages:
                    yield message

        return grpc.unary_stream_rpc_method_handler(cast(Any, forward))

    async def _forward(
        self, method: str, request: bytes, context: Context
    ) -> AsyncGenerator[bytes]:
        metadata = [pair for pair in context.invocation_metadata() or () if pair[0] != "user-agent"]
        stream: Any = self._channel.unary_stream(method)  # of bytes, both ways
        call = stream(request, timeout=context.time_remaining(), metadata=metadata)
        spoiled = self._spoiler.spoil(aiter(call), self._next_fault(), self._sender_gone)
        try:
            async with aclosing(spoiled):
                async for message in spoiled:
                    yield message
        except AbortedError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a fault of the link")
        except SeveredError:
            assert self.relay is not None
            self.relay.sever()
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", error.trailing_metadata())
        finally:
            call.cancel()

    async def _sender_gone(self) -> None:
        """Wait until the connection to the sender is lost."""
        while (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    def _next_fault(self) -> Fault | None:
        if self._armed:
            return self._armed.popleft()
        if self._draws.random() < self._share:
            return draw_fault(self._draws, self._longest_stall)
        return None

    def _note(self, fault: Fault) -> None:
        self.counts[fault.kind.value] += 1


async def _obey(commands: asyncio.StreamReader, link: KvLink, relays: dict[str, Relay]) -> None:
    """Do what each line says and answer it, until there are no more."""
    while line := await commands.readline():
        command = json.loads(line)
        match command["do"]:
            case "arm":
                link.arm(Fault.from_json(command["fault"]))
            case "plan":
                link.plan(command["seed"], command["share"], command["longest_stall"])
            case "swallow":
                relays[command["relay"]].swallow(command["swallows"])
        print(json.dumps({"counts": link.counts}), flush=True)


async def _run(upstream: str) -> None:
    link = KvLink(upstream)
    server = grpc.aio.server(options=[*SHARED_OPTIONS, ("grpc.http2.max_ping_strikes", 0)])
    server.add_generic_rpc_handlers((link,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    async with Relay(f"127.0.0.1:{port}") as spoiling, Relay(upstream) as passing:
        relays = {"grpc": spoiling, "tcp": passing}
        link.relay = spoiling
        print(json.dumps({name: relay.address for name, relay in relays.items()}), flush=True)
        await _obey(commands, link, relays)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
