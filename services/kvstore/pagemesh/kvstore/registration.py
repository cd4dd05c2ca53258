"""Whether a worker may become a member, beside those that there are, and why it is refused, in one wording."""

from __future__ import annotations

from collections.abc import Iterable

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE
from pagemesh.core.kv import NUM_BYTES_OF
from pagemesh.errors import FailedPreconditionError, InvalidRequestError
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


MAX_BLOCK_COUNT = 2**32
"""Blocks of one worker: more than any machine's memory holds, and few enough for every counter."""

MAX_NAME_BYTES = 1024
"""Of each name and address."""

MAX_INFO_BYTES = 16_384
"""Of all facts about one worker: every router is sent them, and one message must be enough for that."""


def check_registration(info: types_pb2.WorkerInfo, members: Iterable[types_pb2.WorkerInfo]) -> None:
    """Refuse an incarnation that cannot be a member; one that is one already passes.

    Raises InvalidRequestError for incomplete or absurd facts, and FailedPreconditionError when a newer incarnation is a
    member, or another process under the same name and epoch, or a worker that serves another model under the
    same model name, or one of the same model whose KV blocks have another shape.
    """
    _check_info(info)
    others = list(members)
    for known in others:
        if known.worker_id == info.worker_id:
            if info.epoch < known.epoch:
                raise stale_epoch(info.worker_id, info.epoch, known.epoch)
            if info.epoch == known.epoch and info != known:
                raise duplicate_worker(info, known)
    # Those who are members agree with each other: one of each model speaks for all, however many come at once.
    models = set[tuple[str, str]]()
    for other in others:
        model = other.model_name, other.model_fingerprint
        if other.worker_id != info.worker_id and model not in models:
            models.add(model)
            refusal = mismatch(info, other)
            if refusal is not None:
                raise refusal


def _check_info(info: types_pb2.WorkerInfo) -> None:
    layout = info.kv_layout
    given: dict[str, object] = {
        "worker_id": info.worker_id,
        "epoch": info.epoch,
        "role": info.role,
        "address": info.address,
        "model_name": info.model_name,
        "model_fingerprint": info.model_fingerprint,
        "kv_layout.block_size": layout.block_size,
        "kv_layout.layer_count": layout.layer_count,
        "kv_layout.kv_head_count": layout.kv_head_count,
        "kv_layout.head_dim": layout.head_dim,
        "kv_layout.dtype": layout.dtype,
        "block_count": info.block_count,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
    }
    for name, value in given.items():
        if not value:
            raise InvalidRequestError(
                f"worker.{name} is {value!r}, but must be set", param=f"worker.{name}"
            )
    if info.block_count > MAX_BLOCK_COUNT:
        raise InvalidRequestError(
            f"worker.block_count is {info.block_count}, but {MAX_BLOCK_COUNT} are the most",
            param="worker.block_count",
        )
    if layout.dtype not in NUM_BYTES_OF:
        raise InvalidRequestError(
            f"worker.kv_layout.dtype is {layout.dtype[:80]!r}, but must be one of {', '.join(NUM_BYTES_OF)}",
            param="worker.kv_layout.dtype",
        )
    _check_canary(info.canary)
    _check_sizes(info)


def _check_sizes(info: types_pb2.WorkerInfo) -> None:
    for name in ("worker_id", "address", "model_name", "model_fingerprint", "arithmetic"):
        num_bytes = len(getattr(info, name).encode())
        if num_bytes > MAX_NAME_BYTES:
            raise InvalidRequestError(
                f"worker.{name} has {num_bytes} bytes, but {MAX_NAME_BYTES} are the most",
                param=f"worker.{name}",
            )
    # What this version does not know of a worker is passed on too.
    if info.ByteSize() > MAX_INFO_BYTES:
        raise InvalidRequestError(
            f"worker has {info.ByteSize()} bytes, but {MAX_INFO_BYTES} are the most", param="worker"
        )


def _check_canary(canary: types_pb2.Canary) -> None:
    for name, digest in (
        ("text_digest", canary.text_digest),
        ("token_digest", canary.token_digest),
        ("block_digest", canary.block_digest),
    ):
        # Every router is sent them.
        if len(digest) not in (0, BLOCK_HASH_SIZE):
            raise InvalidRequestError(
                f"worker.canary.{name} has {len(digest)} bytes, but must have {BLOCK_HASH_SIZE} or none",
                param=f"worker.canary.{name}",
            )
