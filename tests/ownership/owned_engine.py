"""An engine that keeps a ledger of its leases, and notes whoever breaks one."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import StepListener, StepOutput
from pagemesh.core.kv import KvExport, KvLayout
from pagemesh.core.request import EngineRequest
from pagemesh.engine.runner import LayerProgress
from pagemesh.kv_memory.memory import open_memory
from pagemesh.scheduler.batch import Batch, StepResult
from tests.fakes.engine import FakeEngine, FakeKv
from tests.ownership.ledger import CheckedRunner, Ledger


class Pace:
    """Seconds that things take; a test may change them while they happen."""

    def __init__(self) -> None:
        self.step = 0.0
        self.copy = 0.0
        self._never = threading.Event()

    def wait(self, seconds: float) -> None:
        if seconds:
            self._never.wait(seconds)


class _OwnedKv(FakeKv):
    """KV memory whose readers and writers must have a lease before and after they touch it."""

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        ledger: Ledger,
        pace: Pace,
        descriptor: int | None,
    ) -> None:
        super().__init__(layout, num_blocks, descriptor)
        self._ledger = ledger
        self._pace = pace

    def read(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, target: memoryview
    ) -> None:
        self._ledger.check_read(block_ids)
        self._pace.wait(self._pace.copy)
        super().read(block_ids, first_layer, num_layers, target)
        self._ledger.check_read(block_ids)

    def checksum(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> int:
        self._ledger.check_read(block_ids)
        self._pace.wait(self._pace.copy)
        checksum = super().checksum(block_ids, first_layer, num_layers)
        self._ledger.check_read(block_ids)
        return checksum

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        self._ledger.check_write(block_ids)
        self._pace.wait(self._pace.copy)
        super().write(block_ids, first_layer, num_layers, payload)
        self._ledger.check_write(block_ids)

    def copy_from(
        self,
        source: npt.NDArray[np.uint8],
        source_ids: Sequence[int],
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
    ) -> int:
        self._ledger.check_write(block_ids)
        self._pace.wait(self._pace.copy)
        checksum = super().copy_from(source, source_ids, block_ids, first_layer, num_layers)
        self._ledger.check_write(block_ids)
        return checksum


class _PacedRunner(CheckedRunner):
    """As slow as it is told to be."""

    def __init__(self, kv: FakeKv, ledger: Ledger, pace: Pace) -> None:
        super().__init__(kv, ledger)
        self._times = pace

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self._times.wait(self._times.step)
        return super().execute(batch, watch)


class OwnedEngine(FakeEngine):
    """A fake engine, watched: a lease begins when it has made it known, and ends when its holder says so.

    What is wrong is noted in `violations`: an exception would be taken for bad luck with another worker.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, scheduler: SchedulerConfig, shares: bool
    ) -> None:
        """`shares` says whether other workers on this host may read its KV where it lies."""
        super().__init__(num_blocks=num_blocks, block_size=block_size, scheduler=scheduler)
        self.violations: list[str] = []
        self.pace = Pace()
        self._ledger = Ledger(block_size, self.violations.append)
        self._books = threading.Lock()
        self._exports: dict[str, KvExport | None] = {}
        self._imports: set[str] = set()
        self._pins: set[str] = set()
        descriptor = open_memory() if shares else None
        kv = _OwnedKv(self.info.layout, num_blocks, self._ledger, self.pace, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        self._kv = kv
        self._loop._runner = _PacedRunner(kv, self._ledger, self.pace)

    def open_leases(self) -> set[str]:
        """Those that nobody has given up."""
        with self._books:
            return {*self._exports, *self._imports, *self._pins, *self._ledger.open_leases}

    def start(self, listener: StepListener) -> None:
        def watch(step: StepOutput) -> None:
            with self._books:
                self._note(step)
            listener(step)

        super().start(watch)

    def submit(self, request: EngineRequest) -> None:
        with self._books:
            if request.hold_blocks:
                self._exports[request.request_id] = None
        super().submit(request)

    def release(self, request_id: str) -> None:
        with self._books:
            if request_id in self._pins:
                self._pins.remove(request_id)
            elif request_id in self._exports:
                del self._exports[request_id]
            else:
                self.violations.append(f"{request_id} is released twice")
            self._ledger.end(request_id)
        super().release(request_id)

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        with self._books:
            if request_id not in self._imports:
                self.violations.append(f"the import of {request_id} is given back twice")
            self._imports.discard(request_id)
            self._ledger.end(f"import of {request_id}")
        super().finish_import(request_id, num_valid_tokens)

    def pin(self, request_id: str, block_hashes: Sequence[bytes]) -> Future[tuple[int, ...]]:
        def note(pinned: Future[tuple[int, ...]]) -> None:
            if pinned.cancelled() or pinned.exception() is not None:
                return
            block_ids = pinned.result()
            with self._books:
                if request_id in self._pins:
                    num_tokens = len(block_ids) * self.info.layout.block_size
                    self._ledger.lend(request_id, block_ids, num_tokens)

        with self._books:
            self._pins.add(request_id)
        future = super().pin(request_id, block_hashes)
        # Called before whoever waits for the blocks.
        future.add_done_callback(note)
        return future

    def _note(self, step: StepOutput) -> None:
        for grant in step.grants:
            self._imports.add(grant.request_id)
            first = grant.num_held_tokens // self.info.layout.block_size
            self._ledger.grant(f"import of {grant.request_id}", grant.block_ids[first:])
        for export in step.exports:
            if export.request_id in self._exports:
                self._exports[export.request_id] = export
        for progress in step.progress:
            known = self._exports.get(progress.request_id)
            if known is not None:
                self._ledger.lend(progress.request_id, known.block_ids, progress.num_tokens)
