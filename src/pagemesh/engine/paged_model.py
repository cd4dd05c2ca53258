"""A model over its paged KV: what every runner computes with, on whatever device the tensors are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.runner import LayerProgress
from pagemesh.errors import InternalError, PagemeshError
from pagemesh.kernels.paged_attention import (
    AttentionPlan,
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    ReusablePlan,
)
from pagemesh.kernels.write_kv import KvWriter, Turn, make_kv_writer
from pagemesh.models.interface import ForwardContext
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.batch import ScheduledSequence

AttentionMaker = Callable[[AttentionShape, torch.device], PagedAttention]


class PagedModel:
    """Runs a model's tokens with their keys and values in blocks. Waits for no device."""

    def __init__(
        self,
        model: LoadedModel,
        layout: KvLayout,
        layers: Sequence[torch.Tensor],
        make_attention: AttentionMaker,
        on_layer: Callable[[], None] | None = None,
    ) -> None:
        """`layers` is the KV memory: of each layer [2, blocks, block_size, kv heads, row size].

        `on_layer` is called once for each layer of a step, on its thread.
        """
        num_blocks = layers[0].shape[1]
        self.on_layer = on_layer
        self.decoder = model.decoder
        """The model without its KV."""
        self._layer_attention = model.layer_attention
        # Of an encoder, every layer's keys and values take the place of the last one's.
        self._layer_kv = [*layers] * (model.shape.num_layers // len(layers))
        self._num_slots = num_blocks * layout.block_size
        shape = AttentionShape(
            num_heads=model.shape.num_heads,
            num_kv_heads=model.shape.num_kv_heads,
            head_dim=model.shape.head_dim,
            num_blocks=num_blocks,
            block_size=layout.block_size,
            dtype=model.dtype,
            causal=model.shape.causal,
            kv_dtype=layers[0].dtype,
        )
        self._writer = make_kv_writer(layers[0].device)
        self.attention = make_attention(shape, layers[0].device)
        """Makes the plans for `forward`."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plan: AttentionPlan,
        rows: torch.Tensor | None,
        progress: LayerProgress | None = None,
        probe: KvFiniteCheck | None = None,
    ) -> torch.Tensor:
        """Run tokens, each int64 [T], and store their KV in the slots; see `CausalModel.forward`.

        `progress` is told when the device was asked to write the layers, and `probe` looks at the last one.
        """
        step = self.over_kv(self.slot_mapping(slots), plan, progress, probe)
        return self.decoder.forward(token_ids, positions, step, rows)

    def slot_mapping(self, slots: torch.Tensor) -> torch.Tensor:
        return self._writer.slot_mapping(slots, self._num_slots)

    def over_kv(
        self,
        slot_mapping: torch.Tensor,
        plan: AttentionPlan,
        progress: LayerProgress | None = None,
        probe: KvFiniteCheck | None = None,
        on_layer: Callable[[], None] | None = None,
    ) -> ForwardContext:
        """What a step's layers write to and read from; `on_layer` in the place of the model's."""
        observers = progress, probe, on_layer or self.on_layer
        return _PagedStep(
            self._layer_kv, self._layer_attention, self._writer, slot_mapping, plan, observers
        )

    def make_reusable_plan(self, capacity: Capacity) -> ReusablePlan:
        """A plan for `forward`; see `PagedAttention.make_reusable`."""
        return self.attention.make_reusable(capacity, self._layer_attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)


def paged_sequences(sequences: Sequence[ScheduledSequence]) -> list[PagedSequence]:
    """What attention needs to know of a step's sequences."""
    return [
        PagedSequence(len(s.token_ids), s.start + len(s.token_ids), s.block_ids) for s in sequences
    ]


class _PagedStep:
    """`ForwardContext` over the paged KV."""

    def __init__(
        self,
        layers: Sequence[torch.Tensor],
        layer_attention: Sequence[LayerAttention],
        writer: KvWriter,
        slot_mapping: torch.Tensor,
        plan: AttentionPlan,
        observers: tuple[LayerProgress | None, KvFiniteCheck | None, Callable[[], None] | None],
    ) -> None:
        self._layers = layers
        self._layer_attention = layer_attention
        self._writer = writer
        self._slot_mapping = slot_mapping
        self._plan = plan
        self._progress, self._probe, self._on_layer = observers

    def write(self, layer: int, heads: torch.Tensor, turn: Turn | None) -> None:
        if self._on_layer is not None:
            self._on_layer()
        layer_kv, scales = self._layers[layer], self._layer_attention[layer].kv_scales
        self._writer.write(layer_kv, heads, self._slot_mapping, scales, turn)
        if self._progress is not None and layer + 1 in self._progress.num_layers:
            self._progress.tell(layer + 1)
        if self._probe is not None and layer + 1 == len(self._layers):
            self._probe.look(heads[:, -2 * layer_kv.shape[3] :])

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return self._plan.attend(query, self._layers[layer], self._layer_attention[layer])


class KvFiniteCheck:
    """Looks at chunks from which nothing is sampled yet. Of others the logits tell: their token attends to all.

    The last layer tells of all: a token attends to itself, so that what is not finite in one layer of its
    keys and values is carried into every later one.
    """

    def __init__(self, chunks: Sequence[tuple[str, int, int]]) -> None:
        """Of each chunk its request, its first token among all of the step, and the one behind its last."""
        self._chunks = chunks
        self._sums: torch.Tensor | None = None

    @property
    def sums(self) -> torch.Tensor:
        """Of each token's keys and values, float32 [T]; wherever these are."""
        assert self._sums is not None, "there was no forward pass"
        return self._sums

    def look(self, keys_values: torch.Tensor) -> None:
        """Take note of the last layer's keys and values, [T, 2 · kv heads, head_dim], as they were before they
        were stored: FP8 has no infinities."""
        self._sums = keys_values.flatten(1).sum(1, dtype=torch.float32)

    def take(self, sums: torch.Tensor) -> None:
        """Take note of what another one, which looked at the same tokens, has found."""
        self._sums = sums

    def errors(self, sums: npt.NDArray[np.float32]) -> Mapping[str, PagemeshError]:
        """By request id, of what `sums` was."""
        if np.isfinite(sums).all():
            return {}
        return {
            request_id: InternalError(
                f"the model gave keys and values that are not finite for {request_id}",
                reason="KV_NOT_FINITE",
            )
            for request_id, first, end in self._chunks
            if not np.isfinite(sums[first:end]).all()
        }
