"""Why workers are refused, in one wording wherever that is found out."""

from __future__ import annotations

from pagemesh.errors import FailedPreconditionError
from pagemesh.messages import describe_layout
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


def mismatch(
    info: types_pb2.WorkerInfo, other: types_pb2.WorkerInfo
) -> FailedPreconditionError | None:
    """What keeps two workers with different names from being in one mesh, if anything does."""
    is_same_model = info.model_fingerprint == other.model_fingerprint
    if info.model_name == other.model_name and not is_same_model:
        return model_mismatch(info, other)
    # Such workers could never exchange KV, and half of all plans would fail when it is too late.
    if is_same_model and info.kv_layout != other.kv_layout:
        return layout_mismatch(info, other)
    return None


def model_mismatch(
    info: types_pb2.WorkerInfo, other: types_pb2.WorkerInfo
) -> FailedPreconditionError:
    """That another worker serves another model under the same name: answers would depend on the worker."""
    return FailedPreconditionError(
        f"worker {info.worker_id!r} serves model {info.model_fingerprint[:16]} as {info.model_name!r}, but "
        f"{other.worker_id!r} at {other.address} serves model {other.model_fingerprint[:16]} under that name",
        reason="MODEL_MISMATCH",
        param="worker.model_fingerprint",
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
