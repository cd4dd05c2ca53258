"""How a worker has its engine's process move KV: a socket pair for each slot, one question at a time.

Apart from the pipe of commands, so that a copy waits neither for the worker's event loop nor for commands
in front of it, and is over for the worker at the moment when the engine's process is. Who may ask what is
settled by `staged_kv`: a slot has one user at a time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import structlog

from pagemesh.engine_process.pipe import Pipe
from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kv_memory.staged import DeviceMemoryName, Piece, Stager

log = structlog.get_logger(__name__)

ANSWER_PATIENCE: Final = 60.0
"""Seconds for an answer. Longer than the engine's own patience with its device, so that it can say so."""


class Stage(NamedTuple):
    """A question; the answer is None when it is done. Of each question it may be an error instead."""

    direction: Literal["out", "in"]
    piece: Piece


class Sum(NamedTuple):
    """A question; the answer is the checksum."""

    piece: Piece


class Copy(NamedTuple):
    """A question; the answer is the checksum."""

    peer: DeviceMemoryName
    source_ids: Sequence[int]
    piece: Piece


Question = Stage | Sum | Copy
_ANSWERED_ERRORS: Final = (KvIntegrityError, UnavailableError)
"""Of questions that cannot be fulfilled; any other is the device's."""


class RemoteStager:
    """The worker's end; implements `Stager`."""

    def __init__(self, channels: Sequence[Pipe], kill_engine: Callable[[], None]) -> None:
        """One channel for each slot."""
        self._channels = channels
        self._kill_engine = kill_engine

    def stage_out(self, slot: int, piece: Piece) -> None:
        self._ask(slot, Stage("out", piece))

    def stage_in(self, slot: int, piece: Piece) -> None:
        self._ask(slot, Stage("in", piece))

    def sum(self, slot: int, piece: Piece) -> int:
        return int(self._ask(slot, Sum(piece)))

    def copy(
        self, slot: int, peer: DeviceMemoryName, source_ids: Sequence[int], piece: Piece
    ) -> int:
        return int(self._ask(slot, Copy(peer, tuple(source_ids), piece)))

    def _ask(self, slot: int, question: Question) -> Any:
        channel = self._channels[slot]
        try:
            channel.send(question)
            if not channel.poll(ANSWER_PATIENCE):
                # Were it left alone, it might still copy when the blocks are somebody else's.
                self._kill_engine()
                raise UnavailableError(
                    f"the engine was ended: it did not copy KV within {ANSWER_PATIENCE:g} s"
                )
            answer = channel.receive()
        except (EOFError, OSError) as error:
            raise UnavailableError("the engine is gone") from error
        if isinstance(answer, _ANSWERED_ERRORS):
            raise answer
        return answer


def serve(channels: Sequence[Pipe], stager: Stager) -> None:
    """The engine's end: answer on a thread for each slot, until the worker closes its ends."""
    for slot, channel in enumerate(channels):
        threading.Thread(
            target=_answer, args=(channel, slot, stager), name=f"kv-{slot}", daemon=True
        ).start()


def _answer(channel: Pipe, slot: int, stager: Stager) -> None:
    while True:
        try:
            question = channel.receive()
        except (EOFError, OSError):
            return
        answer: object
        try:
            answer = _do(question, slot, stager)
        except _ANSWERED_ERRORS as error:
            answer = error
        except Exception:
            # Boundary to the device. The copy may still come to pass, into blocks that are somebody
            # else's by then: only the end of this process, which the worker notices, prevents that.
            log.critical("the engine ends: KV could not be copied", exc_info=True)
            # A thread of its own writes it.
            logging.shutdown()
            os._exit(1)
        try:
            channel.send(answer)
        except OSError:
            return


def _do(question: Question, slot: int, stager: Stager) -> int | None:
    match question:
        case Stage("out", piece):
            stager.stage_out(slot, piece)
        case Stage("in", piece):
            stager.stage_in(slot, piece)
        case Sum(piece):
            return stager.sum(slot, piece)
        case Copy(peer, source_ids, piece):
            return stager.copy(slot, peer, source_ids, piece)
    return None
