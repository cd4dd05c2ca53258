"""The worker's end of the pipe: whatever becomes of the engine, nobody waits for it in vain."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from multiprocessing.connection import Connection
from typing import Any

import pytest

from pagemesh.core.load import EngineLoad
from pagemesh.engine_process.link import EngineLink
from pagemesh.engine_process.pipe import Pipe
from pagemesh.errors import UnavailableError


class Harmful:
    """Nothing that an engine would send."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


async def test_an_engine_that_is_not_understood_is_as_good_as_gone() -> None:
    one, other = socket.socketpair()
    engine, pipe = Connection(one.detach()), Pipe(other.detach())
    process = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    try:
        link = EngineLink(process, pipe, EngineLoad(0, 0, 0, 0, 0))
        link.follow(lambda step: None)
        pinned = link.pin("r", (b"block",))
        engine.send(Harmful())
        await asyncio.wait_for(link.ended(), 5)
        with pytest.raises(UnavailableError, match="the engine is gone"):
            pinned.result(0)
        assert not link.send("abort", "r")
    finally:
        process.kill()
        process.wait()
        engine.close()
