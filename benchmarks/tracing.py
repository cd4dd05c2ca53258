"""What do spans cost gateway and router: with all requests traced, with one in a hundred, and with none?

Behind them is a worker without a model, which gives tokens at a set pace. Three routers, each behind an Envoy of
its own, in interleaved rounds: CPU time of both for each short request and for each streamed token, and what that
is relative to the router that traces nothing. Spans go to a real collector (rotel), which throws them away.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import rotel
from child import Child
from cpu_clock import CpuClock
from edge.load import ask, chat_body
from edge.sides import TEXT, TOKEN_S, Side, start_gateway
from mesh import MODEL, free_port
from report import Report, make_parser
from routes import instant_workers
from routes.instant_workers import InstantSettings
from routes.processes import Processes
from turns import turns

from pagemesh.local.processes import bound_to
from pagemesh.tokenizer.canary import canary_text
from pagemesh.tokenizer.tokenizer import Tokenizer

QUESTION = "Cost of traces: CPU of gateway and router per request and per token"
SHARES: Final = {"no traces": None, "1 % traced": 0.01, "all traced": 1.0}
NUM_REQUESTS: Final = 400
CONCURRENCY: Final = 16
NUM_STREAMS: Final = 32
NUM_TOKENS: Final = 50
_CHAT: Final = "/v1/chat/completions"


def start_collector(stack: ExitStack) -> str:
    """host:port of one that keeps nothing."""
    address = f"127.0.0.1:{free_port()}"
    command = (
        str(Path(rotel.__file__).with_name("rotel-agent")),
        "start",
        *("--otlp-grpc-endpoint", address, "--otlp-http-endpoint", f"127.0.0.1:{free_port()}"),
        *("--exporter", "blackhole", "--pid-file", "/dev/null"),
    )
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        bound_to(os.getpid(), command), stdin=silent, stdout=silent, stderr=silent
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return address


def start_sides(stack: ExitStack, collector: str) -> dict[str, Side]:
    """The routers with their gateways, and what they have in common."""
    tokenizer = Tokenizer(MODEL)
    mesh = stack.enter_context(Processes(MODEL))
    mesh.start_kvstore()
    mesh.await_serving("kvstore")
    canary = canary_text(tokenizer, chat=False).token_digest
    ids = tuple(tokenizer.encode_batch([TEXT], add_special_tokens=False)[0])
    settings = InstantSettings(
        mesh.address("kvstore"), "demo", 1, canary, token_s=TOKEN_S, token_ids=ids
    )
    stack.enter_context(Child("a worker without a model", instant_workers.run, settings)).answer()
    mesh.await_members(["decode-0"])
    known = {}
    for name, share in SHARES.items():
        flags: tuple[str, ...] = ()
        if share is not None:
            flags = ("--otlp-traces-endpoint", collector, "--traces-sample-ratio", str(share))
        mesh.start_router(name, *flags)
        mesh.await_serving(name)
        port = free_port()
        gateway = start_gateway(stack, mesh.address(name), port, *flags)
        clocks = {"router": CpuClock(mesh.pid(name)), "gateway": CpuClock(gateway.pid)}
        known[name] = Side(port, "demo", clocks)
    return known


async def measure_requests(side: Side) -> dict[str, float]:
    """Microseconds of each process for a short answer."""
    body = chat_body(side.model, 1, stream=False)
    seats = asyncio.Semaphore(CONCURRENCY)

    async def one() -> None:
        async with seats:
            await ask(side.port, _CHAT, body, stream=False)

    before = {part: clock.now() for part, clock in side.clocks.items()}
    await asyncio.gather(*(one() for _ in range(NUM_REQUESTS)))
    return _taken(side, before, NUM_REQUESTS)


async def measure_streams(side: Side) -> dict[str, float]:
    """Microseconds of each process for a token."""
    body = chat_body(side.model, NUM_TOKENS, stream=True)
    before = {part: clock.now() for part, clock in side.clocks.items()}
    await asyncio.gather(*(ask(side.port, _CHAT, body, stream=True) for _ in range(NUM_STREAMS)))
    return _taken(side, before, NUM_STREAMS * NUM_TOKENS)


def _taken(side: Side, before: Mapping[str, float], num: int) -> dict[str, float]:
    return {part: (clock.now() - before[part]) / num * 1e6 for part, clock in side.clocks.items()}


async def measure(report: Report, known: Mapping[str, Side], num_rounds: int) -> None:
    """All sides in turn; the first round only warms up."""
    for number in range(num_rounds + 1):
        found: dict[tuple[str, str, str], float] = {}
        for name in turns(list(known), number):
            for unit, took in (
                ("request", await measure_requests(known[name])),
                ("token", await measure_streams(known[name])),
            ):
                found |= {(unit, part, name): value for part, value in took.items()}
        if not number:
            continue
        for (unit, part, name), value in found.items():
            at = f"CPU of the {part} per {unit}"
            report.sample(f"{at}, {name}", "us", value)
            without = found[unit, part, "no traces"]
            if name != "no traces":
                report.sample(f"{at}, {name}, relative to none", "x", value / without)


def main() -> None:
    """Measure, print it and write it down."""
    options = make_parser("tracing", QUESTION).parse_args()
    num_rounds = 2 if options.quick else 9
    settings: dict[str, object] = {"rounds": num_rounds, "tokens": NUM_TOKENS}
    report = Report("tracing", QUESTION, settings | {"streams": NUM_STREAMS})
    with ExitStack() as stack:
        known = start_sides(stack, start_collector(stack))
        asyncio.run(measure(report, known, num_rounds))
    report.figures.sort(key=lambda figure: figure.name)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
