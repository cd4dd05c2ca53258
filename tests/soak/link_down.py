"""`make soak-netns`: the link between two network namespaces goes down in mid-transfer, several times.

A prefill worker runs in a namespace of its own, the decode worker outside, and a pair of virtual
interfaces joins them. Needs root and iproute2. Each time, the decode worker must notice within two
seconds and finish with the tokens of an undisturbed run, and the prefill worker must free its blocks; when
the link is up again, KV comes over it again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pagemesh.v1 import decode_pb2, types_pb2
from tests.soak.stage import ARGUMENTS, IN_MESSAGES, Stage
from tests.support.worker_process import WorkerProcess

NAMESPACE = "pm-soak"
INTERFACE = "pm-soak0"
OUTSIDE, INSIDE = "10.213.77.1", "10.213.77.2"
NOTICED_WITHIN_S = 2.0
LEEWAY_S = 1.0
"""For looking, which starts a process each time."""
USED_AGAIN_WITHIN_S = 10.0
PROMPT = tuple(20 + (11 * i) % 400 for i in range(1900))
SAMPLING = types_pb2.SamplingParams(max_tokens=8, temperature=1.5, seed=7, ignore_eos=True)


def ip(arguments: str) -> None:
    """Run iproute2."""
    subprocess.run(["ip", *arguments.split()], check=True)


@contextmanager
def namespace() -> Iterator[None]:
    """A namespace that is reached over INTERFACE; gone at the end."""
    ip(f"netns add {NAMESPACE}")
    try:
        ip(f"link add {INTERFACE} type veth peer name {INTERFACE}p netns {NAMESPACE}")
        ip(f"addr add {OUTSIDE}/30 dev {INTERFACE}")
        ip(f"link set {INTERFACE} up")
        ip(f"-n {NAMESPACE} addr add {INSIDE}/30 dev {INTERFACE}p")
        ip(f"-n {NAMESPACE} link set {INTERFACE}p up")
        ip(f"-n {NAMESPACE} link set lo up")
        yield
    finally:
        ip(f"netns del {NAMESPACE}")


async def seconds_until(what: str, is_so: Callable[[], bool], limit: float) -> float:
    """How long it took; AssertionError when that is more than the limit."""
    begun_at = time.monotonic()
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() - begun_at < limit, f"not within {limit:g} s: {what}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun_at


async def ask(stage: Stage, number: int, *, remotely: bool) -> list[int]:
    """The tokens of the prompt, which nobody has cached."""
    workers = [stage.senders[0].peer()] if remotely else []
    received = await stage.ask(
        PROMPT,
        SAMPLING,
        plan=decode_pb2.PrefillPlan(workers=workers) if workers else None,
        salt=number.to_bytes(4, "big"),
        seconds=60.0,
    )
    assert received.is_finished, received
    return received.token_ids


async def ask_until_kv_comes(stage: Stage, number: int, answer: list[int]) -> None:
    """Attempts to connect are a second or two apart; AssertionError when none succeeds for long."""

    def num_complete() -> float:
        return stage.decode.metric("pagemesh:remote_prefills_total", outcome="complete")

    complete, deadline = num_complete(), time.monotonic() + USED_AGAIN_WITHIN_S
    for attempt in itertools.count():
        salt = 1000 * (1 + attempt) + number
        assert await ask(stage, salt, remotely=True) == answer, "wrong tokens"
        if num_complete() > complete:
            return
        assert time.monotonic() < deadline, "KV does not come over the link again"


async def cut(stage: Stage, number: int, answer: list[int]) -> None:
    """One request whose link goes down under it."""
    prefill, decode = stage.senders[0], stage.decode

    def num_failures() -> float:
        return decode.metric("pagemesh:kv_import_failures_total")

    failed = num_failures()
    asking = asyncio.create_task(ask(stage, number, remotely=True))
    received = decode.metric("pagemesh:kv_bytes_received_total")
    await seconds_until(
        "KV arrives",
        lambda: decode.metric("pagemesh:kv_bytes_received_total") > received,
        30.0,
    )
    limit = NOTICED_WITHIN_S + LEEWAY_S
    ip(f"link set {INTERFACE} down")
    try:
        noticed = await seconds_until("decode gives up", lambda: num_failures() > failed, limit)
        freed = noticed + await seconds_until(
            "prefill is free", lambda: prefill.num_used_blocks() == 0, limit - noticed + 1.0
        )
        assert await asking == answer, "wrong tokens"
    finally:
        ip(f"link set {INTERFACE} up")
    up_at = time.monotonic()
    await ask_until_kv_comes(stage, number, answer)
    print(
        f"cut {number}: noticed in {noticed:.1f} s, freed in {freed:.1f} s, "
        f"used again after {time.monotonic() - up_at:.1f} s",
        flush=True,
    )
    await seconds_until("decode is free", lambda: decode.num_used_blocks() == 0, 5.0)


async def run(stage: Stage, num_cuts: int) -> None:
    """All cuts; AssertionError for whatever is not as promised."""
    await stage.open_session()
    answer = await ask(stage, 0, remotely=False)
    for number in range(1, num_cuts + 1):
        await cut(stage, number, answer)
    await stage.close_session()


def main() -> int:
    """Exit status 0 when all went as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, namespace(), ExitStack() as stack:
        logs = Path(folder)
        # Its small steps leave time to cut the link.
        prefill = WorkerProcess(
            "prefill",
            "prefill-0",
            logs / "prefill.log",
            *ARGUMENTS,
            IN_MESSAGES,
            host=INSIDE,
            namespace=NAMESPACE,
        )
        decode = WorkerProcess("decode", "decode-0", logs / "decode.log", *ARGUMENTS, IN_MESSAGES)
        for worker in (prefill, decode):
            worker.start()
            stack.callback(worker.kill)
        prefill.wait_until_serving()
        decode.wait_until_serving()
        asyncio.run(run(Stage([prefill], decode, []), arguments.cuts))
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
