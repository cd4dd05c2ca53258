"""What keeps one decode worker less from being enough: the resource of which more would help it the most.

The smaller deployment is simulated again with as much more of one resource at a time as the missing worker has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from pagemesh.plan.search import Size
from pagemesh.plan.trial import Trials
from pagemesh.sim.model import DecodeModel, LinkModel, MeshModel, PrefillModel, WorkerModel


class Binding(NamedTuple):
    """What binds."""

    fewer: Size
    """The deployment that is not enough."""
    misses: dict[str, int]
    """Its requests that exceeded each limit."""
    good_shares: dict[str, float]
    """Of its requests, as it is ("nothing") and with more of each resource."""

    @property
    def resource(self) -> str | None:
        """That helps the most, if any does; where several help alike, all of them."""
        gains = {n: s - self.good_shares["nothing"] for n, s in self.good_shares.items()}
        most = max(gains.values())
        return " or ".join(n for n, gain in gains.items() if gain == most) if most > 0 else None


def what_binds(size: Size, model: MeshModel, trials: Trials) -> Binding | None:
    """None with a single decode worker, than which none is less."""
    if size.decode == 1:
        return None
    fewer = Size(size.decode - 1, size.prefill)
    factor = size.decode / fewer.decode
    as_it_is = trials.run(fewer, model, may_cut=False)
    shares = {"nothing": as_it_is.good_share}
    for name, more in RESOURCES.items():
        if name == "network" and not size.prefill:
            continue
        shares[name] = trials.run(fewer, more(model, factor), may_cut=False).good_share
    return Binding(fewer, as_it_is.misses, shares)


def _of_workers(model: MeshModel, change: Callable[[WorkerModel], WorkerModel]) -> MeshModel:
    prefill = model.prefill
    return replace(model, decode=change(model.decode), prefill=prefill and change(prefill))


def _more_kv(model: MeshModel, factor: float) -> MeshModel:
    return _of_workers(model, lambda w: replace(w, kv_tokens=int(w.kv_tokens * factor)))


def _more_seats(model: MeshModel, factor: float) -> MeshModel:
    def change(worker: WorkerModel) -> WorkerModel:
        slots = math.ceil(worker.max_num_seqs * factor)
        tokens = max(slots, worker.max_num_batched_tokens)
        return replace(worker, max_num_seqs=slots, max_num_batched_tokens=tokens)

    return _of_workers(model, change)


def _more_compute(model: MeshModel, factor: float) -> MeshModel:
    def change(worker: WorkerModel) -> WorkerModel:
        rate, decode = worker.prefill, worker.decode
        prefill = PrefillModel(
            rate.seconds_per_token / factor, rate.seconds_per_pair / factor, rate.seconds_per_step
        )
        sequence = decode.seconds_per_sequence / factor
        return replace(
            worker, prefill=prefill, decode=replace(decode, seconds_per_sequence=sequence)
        )

    return _of_workers(model, change)


def _more_bandwidth(model: MeshModel, factor: float) -> MeshModel:
    def change(worker: WorkerModel) -> WorkerModel:
        step = worker.prefill.seconds_per_step / factor
        decode = DecodeModel(
            worker.decode.seconds_per_sequence,
            worker.decode.seconds_per_pair / factor,
            worker.decode.seconds_per_step / factor,
        )
        prefill = replace(worker.prefill, seconds_per_step=step)
        return replace(worker, prefill=prefill, decode=decode)

    return _of_workers(model, change)


def _more_network(model: MeshModel, factor: float) -> MeshModel:
    link = LinkModel(model.link.bytes_per_second * factor, model.link.latency_seconds)
    return replace(model, link=link)


RESOURCES: Final[dict[str, Callable[[MeshModel, float], MeshModel]]] = {
    "KV memory": _more_kv,
    "--max-num-seqs": _more_seats,
    "compute": _more_compute,
    "memory bandwidth": _more_bandwidth,
    "network": _more_network,
}
"""compute: what each token and each sequence costs; memory bandwidth: what each step costs, and each token that a
decode attends to."""
