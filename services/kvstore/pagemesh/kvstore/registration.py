"""Whether a worker may become a member, beside those that there are."""

from __future__ import annotations

from collections.abc import Iterable

from pagemesh.errors import InvalidRequestError
from pagemesh.kvstore.refusals import duplicate_worker, layout_mismatch, stale_epoch
from pagemesh.v1 import types_pb2


def check_registration(info: types_pb2.WorkerInfo, members: Iterable[types_pb2.WorkerInfo]) -> None:
    """Refuse an incarnation that cannot be a member; one that is one already passes.

    Raises InvalidRequestError for incomplete facts, and FailedPreconditionError when a newer incarnation is a
    member, or another process under the same name and epoch, or a worker of the same model whose KV blocks
    have another shape.
    """
    _check_info(info)
    others = list(members)
    for known in others:
        if known.worker_id == info.worker_id:
            if info.epoch < known.epoch:
                raise stale_epoch(info.worker_id, info.epoch, known.epoch)
            if info.epoch == known.epoch and info != known:
                raise duplicate_worker(info, known)
    for other in others:
        # Such workers could never exchange KV, and half of all plans would fail when it is too late.
        is_peer = other.worker_id != info.worker_id
        is_same_model = other.model_fingerprint == info.model_fingerprint
        if is_peer and is_same_model and other.kv_layout != info.kv_layout:
            raise layout_mismatch(info, other)


def _check_info(info: types_pb2.WorkerInfo) -> None:
    given: dict[str, object] = {
        "worker_id": info.worker_id,
        "epoch": info.epoch,
        "role": info.role,
        "address": info.address,
        "model_fingerprint": info.model_fingerprint,
        "block_count": info.block_count,
    }
    for name, value in given.items():
        if not value:
            raise InvalidRequestError(
                f"worker.{name} is {value!r}, but must be set", param=f"worker.{name}"
            )
