"""Whether a worker may become a member, beside those that there are."""

from __future__ import annotations

from collections.abc import Iterable

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE
from pagemesh.core.kv import NUM_BYTES_OF
from pagemesh.errors import InvalidRequestError
from pagemesh.kvstore.refusals import duplicate_worker, mismatch, stale_epoch
from pagemesh.v1 import types_pb2

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
