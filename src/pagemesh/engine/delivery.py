"""What an engine makes known, handed to its listener one by one, from whichever thread it comes."""

from __future__ import annotations

import threading
from functools import partial

import structlog

from pagemesh.core.engine import StepListener, StepOutput
from pagemesh.core.kv import BlockLayout, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.engine.layer_watch import LayerWatch, watched_layers
from pagemesh.scheduler.batch import Batch, ExportedChunk

log = structlog.get_logger(__name__)


class Delivery:
    """Calls the listener: between steps by the loop, and within steps by whoever sees layers get ready."""

    def __init__(self, layout: BlockLayout, load: EngineLoad) -> None:
        self.load = load
        """The load after the last step; replaced as a whole, so any thread may read it."""
        self._layout = layout
        self._listener: StepListener | None = None
        # Also for the load: an old one must not be told behind a new one.
        self._telling = threading.Lock()

    def open(self, listener: StepListener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def close(self) -> None:
        """Tell nobody any more: whoever waits for a device may be late."""
        with self._telling:
            self._listener = None

    def tell(self, load: EngineLoad, output: StepOutput | None) -> None:
        """The load, and everything that became known with it, if anything did."""
        with self._telling:
            self.load = load
            if output is not None:
                self._call(output)

    def watch(self, batch: Batch) -> LayerWatch | None:
        """Tells of the batch's exports, layer by layer; None for a batch with nothing to tell of so early."""
        if not batch.exports:
            return None
        num_tokens = sum(chunk.num_new_tokens for chunk in batch.exports)
        num_layers = watched_layers(self._layout, num_tokens)
        if not num_layers:
            return None
        return LayerWatch(num_layers, partial(self._tell_layers, batch.exports))

    def _tell_layers(self, exports: tuple[ExportedChunk, ...], num_layers: int) -> None:
        progress = tuple(KvProgress(e.request_id, e.num_tokens, num_layers) for e in exports)
        with self._telling:
            self._call(StepOutput(progress=progress, load=self.load))

    def _call(self, output: StepOutput) -> None:
        if self._listener is None:
            return
        try:
            self._listener(output)
        except Exception:
            # Boundary to the service: its bug must not end other requests.
            log.exception("engine listener failed")
