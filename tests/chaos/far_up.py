"""`pagemesh up` with each part on a machine of its own: python far_up.py HOMES FOLDER FLAG …

HOMES is JSON: by the name of each part its IP address and the command that enters its namespace. FOLDER is for sockets. All else is as `pagemesh up` has it: the plan, and who starts again what died.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.console import Console
from pagemesh.cli.up.mesh import Mesh
from pagemesh.cli.up.plan import LOOPBACK, MeshPlan, PartPlan, make_plan, num_ports

FIRST_PORT: Final = 5001
GATEWAY_PORT: Final = 8000
_ADDRESS: Final = re.compile(rf"\b{re.escape(LOOPBACK)}:(\d+)")


class Home(NamedTuple):
    """Where a part lives."""

    address: str
    entrance: Sequence[str]
    """What is put before its command."""


def move(plan: MeshPlan, homes: Mapping[str, Home]) -> MeshPlan:
    """The same mesh with its parts in their homes, where they have the ports that they had."""
    hosts = {_port(part): homes[part.name].address for part in plan.parts}

    def moved(match: re.Match[str]) -> str:
        return f"{hosts[match[1]]}:{match[1]}"

    def move_part(part: PartPlan) -> PartPlan:
        home = homes[part.name]
        words = [_ADDRESS.sub(moved, word) for word in part.command]
        if part.name != "gateway":
            words += ["--host", home.address]
        command = (*home.entrance, *words)
        return replace(part, command=command, address=f"{home.address}:{_port(part)}")

    return replace(plan, parts=tuple(map(move_part, plan.parts)))


def _port(part: PartPlan) -> str:
    return part.address.rpartition(":")[2]


async def up(config: UpConfig, homes: Mapping[str, Home], folder: Path) -> None:
    """Run the mesh until a signal."""
    assert config.log_dir is not None
    logs = Path(config.log_dir)
    ports = range(FIRST_PORT, FIRST_PORT + num_ports(config))
    mesh = Mesh(
        move(make_plan(config, ports, folder, logs / "access.jsonl"), homes),
        logs,
        console := Console(),
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work = asyncio.create_task(_work(mesh, console))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        work.cancel()
        stopped.cancel()
        await mesh.stop()


async def _work(mesh: Mesh, console: Console) -> None:
    await mesh.start()
    console.running()
    await mesh.watch()


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    homes = {name: Home(*home) for name, home in json.loads(sys.argv[1]).items()}
    flags = ["--host", homes["gateway"].address, "--port", str(GATEWAY_PORT), *sys.argv[3:]]
    config = parse(UpConfig, "far_up", "", flags)
    asyncio.run(up(config, homes, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
