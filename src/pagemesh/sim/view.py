"""What routers hear of the workers: who they are and what they last reported, as the kvstore passes it on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pagemesh.core.kv import KvLayout
from pagemesh.core.load import EngineLoad, PrefillRate
from pagemesh.router.routing.candidate import Naming, Role, WorkerFacts
from pagemesh.router.routing.cost import Link
from pagemesh.sim.model import MeshModel, WorkerModel

MODEL_NAME: Final = "model"
"""All workers have the same."""


class Roster:
    """All workers; every router hears of them at the same time."""

    def __init__(self, model: MeshModel) -> None:
        self._layout = make_layout(model)
        self.naming = Naming(MODEL_NAME, self._layout.block_size, self._layout.dtype)
        """How all workers name blocks."""
        self._facts: dict[str, WorkerFacts] = {}
        self._unreachable: set[str] = set()

    @property
    def facts(self) -> Collection[WorkerFacts]:
        """Of all workers, in order of joining."""
        return self._facts.values()

    @property
    def unreachable(self) -> Collection[str]:
        """Ids of those that are gone."""
        return self._unreachable

    def epoch(self, worker_id: str) -> int:
        """Of the incarnation that was last heard of."""
        return self._facts[worker_id].epoch

    def join(self, worker_id: str, role: Role, model: WorkerModel, epoch: int) -> None:
        """A worker registered; nothing is known of its load."""
        self._unreachable.discard(worker_id)
        block_size = self._layout.block_size
        # No more fits into its cache, but for the last token, whose KV nobody needs.
        most = model.kv_tokens // block_size * block_size + 1
        self._facts[worker_id] = WorkerFacts(
            worker_id=worker_id,
            role=role,
            address=worker_id,
            epoch=epoch,
            model_name=MODEL_NAME,
            model_fingerprint=MODEL_NAME,
            layout=self._layout,
            block_naming=b"",
            max_model_len=min(model.max_model_len, most),
            max_num_seqs=model.max_num_seqs,
            num_blocks=model.kv_tokens // block_size,
            num_free_blocks=model.kv_tokens // block_size,
        )

    def leave(self, worker_id: str, epoch: int) -> None:
        """Its sessions and streams broke."""
        self._unreachable.add(worker_id)
        self._facts[worker_id] = replace(
            self._facts[worker_id],
            epoch=epoch,
            num_running=0,
            num_waiting=0,
            num_pending_tokens=0,
            num_free_blocks=self._facts[worker_id].num_blocks,
            reported_at=None,
            prefill_rate=PrefillRate(),
            links={},
        )

    def report(
        self, worker_id: str, load: EngineLoad, links: Mapping[str, Link], now: float
    ) -> None:
        """Its load is known."""
        self._facts[worker_id] = replace(
            self._facts[worker_id],
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_pending_tokens=load.num_pending_prefill_tokens,
            num_free_blocks=load.num_free_blocks,
            reported_at=now,
            prefill_rate=load.prefill_rate,
            links=links,
        )


def make_layout(model: MeshModel) -> KvLayout:
    """A layout whose blocks have as many bytes and layers as the model's."""
    return KvLayout.uniform(
        block_size=model.block_size,
        num_layers=model.num_layers,
        num_kv_heads=1,
        head_dim=model.kv_bytes_per_token // (2 * model.num_layers),
        dtype="float8_e4m3fn",
    )
