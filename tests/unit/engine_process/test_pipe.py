"""The pipe between a worker and its engine carries values, and runs nothing."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig, ServerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.engine_process.pipe import Command, EngineSettings, NotUnderstoodError, Pinned, Pipe
from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs


class Does:
    """Reduces to a call, as pickles that do harm are made."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._call = (call, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Pipe]]:
    """What an attacker holds, and the other end."""
    one, other = socket.socketpair()
    connection, pipe = Connection(one.detach()), Pipe(other.detach())
    yield connection, pipe
    connection.close()
    pipe.close()


@pytest.mark.parametrize(
    "message",
    [
        EngineSettings(
            ModelConfig("m"), CacheConfig(), SchedulerConfig(), ServerConfig(), "decode"
        ),
        Command(
            "submit",
            (
                EngineRequest(
                    "r",
                    (1, 2),
                    SamplingParams(
                        logit_bias={3: 1.0}, structured_outputs=StructuredOutputs.of(regex="a")
                    ),
                ),
            ),
        ),
        StepOutput(outputs=[RequestOutput("r", (5,), FinishReason.STOP)]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_values_arrive_as_they_were(ends: tuple[Connection, Pipe], message: object) -> None:
    one, pipe = ends
    sender = Pipe(os.dup(one.fileno()))
    sender.send(message)
    sender.close()
    assert pipe.receive() == message


def test_enums_arrive_whatever_python_would_write_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(  # As Python 3.11.2 has it.
        FinishReason, "__reduce_ex__", lambda self, _: (getattr, (FinishReason, self.name))
    )
    one, other = socket.socketpair()
    sender, receiver = Pipe(one.detach()), Pipe(other.detach())
    sender.send(FinishReason.STOP)
    assert receiver.receive() is FinishReason.STOP
    sender.close()
    receiver.close()


def test_errors_arrive_with_all_that_they_say(ends: tuple[Connection, Pipe]) -> None:
    one, pipe = ends
    one.send(Pinned("r", InvalidRequestError("no", param="p")))
    outcome = pipe.receive().outcome
    assert (outcome.message, outcome.param) == ("no", "p")


@pytest.mark.parametrize(
    "call",
    [
        os.system,
        partial,
        pickle.loads,
        eval,
        Pipe,
        Path,
        "pagemesh.engine_process.client:EngineProcess",
        "pagemesh.engine_process.pipe:pickle.loads",
        "pagemesh.engine_process.pipe:Connection",
    ],
    ids=str,
)
def test_whatever_would_do_something_is_not_even_found(
    ends: tuple[Connection, Pipe], call: Any, tmp_path: Path
) -> None:
    one, pipe = ends
    if isinstance(call, str):
        # By hand, as nobody's pickle would name them: both names, STACK_GLOBAL, and a call without arguments.
        names = [name.encode() for name in call.split(":")]
        named = b"".join(b"\x8c" + bytes([len(name)]) + name for name in names)
        one.send_bytes(b"\x80\x04" + named + b"\x93)R.")
    else:
        one.send(Does(call, f"touch {tmp_path}/done"))
    with pytest.raises(NotUnderstoodError, match="is nothing that engines and workers send"):
        pipe.receive()
    assert not (tmp_path / "done").exists()
