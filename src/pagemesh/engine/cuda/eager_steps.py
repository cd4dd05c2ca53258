"""Steps of any kind on a device: their kernels are started one by one."""

from __future__ import annotations

import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.layer_events import LayerEvents
from pagemesh.engine.cuda.token_inputs import LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.engine.layer_watch import LayerWatch
from pagemesh.engine.paged_model import PagedModel, paged_sequences
from pagemesh.engine.step_inputs import StepInputs
from pagemesh.engine.step_rows import StepRows


class EagerSteps:
    """Brings a step's inputs to the device and runs the model on them; within `Accelerator.computing`."""

    def __init__(
        self,
        model: PagedModel,
        transfers: Transfers,
        last_tokens: LastTokens,
        accelerator: Accelerator,
        timeout: float,
    ) -> None:
        """The device hangs when a step takes longer than `timeout` seconds."""
        self._model = model
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._accelerator = accelerator
        self._timeout = timeout

    def run(self, inputs: StepInputs, rows: StepRows, watch: LayerWatch | None) -> torch.Tensor:
        """Hidden states [R, hidden] of the rows; layers are told of when the device has written them."""
        if watch is None:
            return self._forward(inputs, rows, None)
        events = LayerEvents(watch, self._accelerator, self._timeout)
        hidden = self._forward(inputs, rows, events.watch)
        events.follow()
        return hidden

    def _forward(
        self, inputs: StepInputs, rows: StepRows, watch: LayerWatch | None
    ) -> torch.Tensor:
        # Unknown tokens are decodes, which are in front.
        num_mixed = inputs.unknown[-1] + 1 if inputs.unknown else 0
        mixed = self._last_tokens.rows(num_mixed, inputs.unknown, inputs.previous_rows)
        selection = rows.selection()
        selected = () if selection is None else (selection,)
        columns, kept, *needed = self._transfers.upload([inputs.columns, mixed, *selected])
        token_ids, positions, slots = columns
        if num_mixed:
            token_ids[:num_mixed] = self._last_tokens.fill(token_ids[:num_mixed], kept)
        plan = self._model.attention.plan(paged_sequences(inputs.sequences))
        last = needed[0] if needed else None
        return self._model.forward(token_ids, positions, slots, plan, last, watch, rows.probe)
