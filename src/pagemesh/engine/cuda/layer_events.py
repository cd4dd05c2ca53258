"""Tells how far a step has got on a device that works beside the host, without waiting for it there."""

from __future__ import annotations

import threading

from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.engine.layer_watch import LayerWatch


class LayerEvents:
    """One step's: an event behind each layer that is to be told of, and a thread that waits for them.

    The thread ends with the step, and there is none for steps that nobody watches.
    """

    def __init__(self, watch: LayerWatch, accelerator: Accelerator, timeout: float) -> None:
        """A step that takes longer than `timeout` seconds is not told of any more."""
        self._told = watch
        self._accelerator = accelerator
        self._timeout = timeout
        self._events: list[tuple[int, Event]] = []
        self.watch = LayerWatch(watch.num_layers, self._record)
        """For `PagedModel.forward`, within `Accelerator.computing`."""

    def follow(self) -> None:
        """All of the step was asked of the device: tell of each layer when the device has come to it."""
        # A daemon: a step that hangs in the device must not keep the process from exiting.
        threading.Thread(target=self._tell, name="layers", daemon=True).start()

    def _record(self, num_layers: int) -> None:
        self._events.append((num_layers, self._accelerator.record()))

    def _tell(self) -> None:
        for num_layers, event in self._events:
            try:
                self._accelerator.wait(event, self._timeout)
            except Exception:
                # Whoever waits for the step's result finds the same, and says so.
                return
            self._told.tell(num_layers)
