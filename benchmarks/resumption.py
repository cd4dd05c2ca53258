"""How long does a client's stream stand still when its decode worker is killed?

Streams run at once on a mesh with two decode workers, one of which is killed with SIGKILL at a random
point, again and again. The pause is the longest time between two pieces of a stream that lost its
worker. Every text must be that of an undisturbed mesh.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, Final

from mesh import START_DEADLINE_S, Mesh
from report import Report, arguments

QUESTION: Final = "Pause of a stream whose decode worker is killed"
NUM_ROUNDS: Final = 5
NUM_KILLS: Final = 6
"""In a round, which has a mesh of its own: what dies soon again is started again later and later."""
NUM_STREAMS: Final = 6
NUM_TOKENS: Final = 400
DECODERS: Final = ("decode-0", "decode-1")
BEFORE_S: Final = 1.0
"""Within which a worker is killed, from the moment on when all streams have a piece."""


class Stream:
    """One request and what has come of it."""

    def __init__(self, seed: int) -> None:
        self.body = {
            "prompt": "Tell me a story about the sea.",
            "max_tokens": NUM_TOKENS,
            "temperature": 0.8,
            "seed": seed,
            "ignore_eos": True,
        }
        self.request_id = ""
        self.text = ""
        self.times: list[float] = []

    def run(self, mesh: Mesh) -> None:
        """Read it to its end; RuntimeError when it is not whole."""
        finish_reason = None
        for at, data in mesh.stream("/v1/completions", self.body):
            piece = json.loads(data)
            if "error" in piece:
                raise RuntimeError(f"a stream ended with {piece['error']}")
            self.request_id = piece["id"].removeprefix("cmpl-")
            self.text += piece["choices"][0]["text"]
            finish_reason = piece["choices"][0]["finish_reason"]
            self.times.append(at)
        if finish_reason != "length":
            raise RuntimeError("a stream broke off")

    @property
    def pause(self) -> float:
        """The longest time between two pieces."""
        return max(later - sooner for sooner, later in pairwise(self.times))


def get(mesh: Mesh, path: str) -> dict[str, Any]:
    """A JSON object of the gateway's."""
    connection = http.client.HTTPConnection("127.0.0.1", mesh.port, timeout=5)
    try:
        connection.request("GET", path)
        return dict(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def await_workers(mesh: Mesh) -> None:
    """Return when the router reaches all decode workers; RuntimeError if it never does."""
    deadline = time.monotonic() + START_DEADLINE_S
    while get(mesh, "/health").get("decode_workers") != len(DECODERS):
        if time.monotonic() > deadline:
            raise RuntimeError("a decode worker did not come back")
        time.sleep(0.05)


def kill(mesh: Mesh, victim: str, draws: random.Random) -> tuple[list[Stream], list[Stream]]:
    """All streams of one kill, and those that lost their worker."""
    await_workers(mesh)
    streams = [Stream(seed) for seed in range(NUM_STREAMS)]
    process = mesh.parts()[victim].process
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        running = [pool.submit(stream.run, mesh) for stream in streams]
        while not all(stream.times for stream in streams):
            time.sleep(0.005)
        time.sleep(draws.random() * BEFORE_S)
        places = {row["id"]: row["places"][-1]["worker"] for row in get(mesh, "/mesh")["requests"]}
        process.kill()
        killed_at = time.perf_counter()
        wait(running)
        for future in running:
            future.result()
    lost = [
        stream
        for stream in streams
        if places.get(stream.request_id) == victim and stream.times[-1] > killed_at
    ]
    return streams, lost


def rounds(num_rounds: int) -> Iterator[tuple[list[Stream], list[Stream]]]:
    """What came of each kill."""
    draws = random.Random(0)
    for _ in range(num_rounds):
        with Mesh("--decode", str(len(DECODERS))) as mesh:
            mesh.await_ready()
            for number in range(NUM_KILLS):
                yield kill(mesh, DECODERS[number % len(DECODERS)], draws)


def undisturbed() -> list[str]:
    """The texts that all must have."""
    with Mesh("--decode", str(len(DECODERS))) as mesh:
        mesh.await_ready()
        streams = [Stream(seed) for seed in range(NUM_STREAMS)]
        for stream in streams:
            stream.run(mesh)
        return [stream.text for stream in streams]


def main() -> None:
    """Kill and measure; RuntimeError when a text is another one."""
    quick, path = arguments("resumption", QUESTION)
    texts = undisturbed()
    num_rounds = 1 if quick else NUM_ROUNDS
    pauses, others = [], []
    for streams, lost in rounds(num_rounds):
        if [stream.text for stream in streams] != texts:
            raise RuntimeError("a text is not that of an undisturbed mesh")
        pauses += [stream.pause for stream in lost]
        others += [stream.pause for stream in streams if stream not in lost]
    settings: dict[str, object] = {
        "kills": num_rounds * NUM_KILLS,
        "streams": NUM_STREAMS,
        "tokens": NUM_TOKENS,
        "streams that lost their worker": len(pauses),
    }
    report = Report("resumption", QUESTION, settings)
    figure = report.add("pause of streams that lost their worker", "s", pauses, aim=1.0)
    report.add("99th percentile of these", "s", [figure.p99], aim=3.0)
    report.add("pause of the streams beside them", "s", others)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
