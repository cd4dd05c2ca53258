"""Why workers are refused, in one wording wherever that is found out."""

from __future__ import annotations

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvship.layout import describe_layout
from pagemesh.v1 import types_pb2


def unknown_worker(worker_id: str, epoch: int) -> FailedPreconditionError:
    """That an incarnation is no member."""
    return FailedPreconditionError(
        f"worker {worker_id!r} with epoch {epoch} is not registered",
        reason="UNKNOWN_WORKER",
        param="worker_id",
    )


def stale_epoch(worker_id: str, epoch: int, present: int) -> FailedPreconditionError:
    """That a newer incarnation is a member."""
    return FailedPreconditionError(
        f"worker {worker_id!r} comes with epoch {epoch}, but epoch {present} is registered",
        reason="STALE_EPOCH",
        param="epoch",
    )


def duplicate_worker(
    info: types_pb2.WorkerInfo, known: types_pb2.WorkerInfo
) -> FailedPreconditionError:
    """That another process has this name and epoch."""
    return FailedPreconditionError(
        f"worker {info.worker_id!r} with epoch {info.epoch} is already registered from "
        f"{known.address}, now it comes from {info.address}",
        reason="DUPLICATE_WORKER",
        param="worker",
    )


def layout_mismatch(
    info: types_pb2.WorkerInfo, other: types_pb2.WorkerInfo
) -> FailedPreconditionError:
    """That another worker of the same model has KV blocks of another shape."""
    return FailedPreconditionError(
        f"worker {info.worker_id!r} has KV blocks of {describe_layout(info.kv_layout)}, "
        f"but {other.worker_id!r} at {other.address} has {describe_layout(other.kv_layout)} "
        "for the same model",
        reason="LAYOUT_MISMATCH",
        param="worker.kv_layout",
    )
