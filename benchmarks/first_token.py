"""How long from typing `pagemesh up` to the first streamed token? File caches are warm, nothing runs yet."""

from __future__ import annotations

import json
import time

from mesh import Mesh
from report import Report, arguments

QUESTION = "Warm start of `pagemesh up` to the first streamed token"
CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Who are you?"}],
    "temperature": 0,
}


def measure() -> tuple[float, float]:
    """Seconds from the start until the mesh can serve, and until the first token of one chat."""
    started = time.perf_counter()
    with Mesh() as mesh:
        mesh.await_ready()
        ready = time.perf_counter()
        for arrived, data in mesh.stream("/v1/chat/completions", CHAT):
            if json.loads(data)["choices"][0]["delta"].get("content"):
                return ready - started, arrived - started
    raise RuntimeError("the mesh streamed no token")


def main() -> None:
    """Start the mesh a few times; the first start only warms the file caches."""
    quick, path = arguments("first_token", QUESTION)
    measure()
    rounds = [measure() for _ in range(1 if quick else 5)]
    report = Report("first_token", QUESTION, {"model": "models/demo", "prefill": 1, "decode": 1})
    report.add("ready to serve", "s", [ready for ready, _ in rounds])
    report.add("first streamed token", "s", [first for _, first in rounds], aim=10.0)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
