"""What a worker says of itself: in `Process.Describe`, and by its canary.

The canary is how its model folder and its engine turn a conversation into hashes of KV blocks.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import structlog

from pagemesh.cache.block_hash import CANARY_VERSION, digest_token_ids
from pagemesh.config import WorkerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.errors import ConfigError, UnsupportedError
from pagemesh.gguf.documents import has_file
from pagemesh.malloc import give_back_freed_memory
from pagemesh.membership.publisher import MembershipState, Publisher
from pagemesh.messages import digest_to_proto
from pagemesh.rpc.process import package_version
from pagemesh.v1 import process_pb2, types_pb2
from pagemesh.worker.worker import Worker

_MEMBERSHIP = {
    MembershipState.JOINED: process_pb2.MEMBERSHIP_JOINED,
    MembershipState.AWAY: process_pb2.MEMBERSHIP_AWAY,
    MembershipState.REFUSED: process_pb2.MEMBERSHIP_REFUSED,
}


class WorkerDescriber:
    """Describes a worker that loads, and from `loaded` on one that serves. Belongs to one event loop."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._loading = types_pb2.WorkerInfo()
        self._worker: Worker | None = None
        self._publisher: Publisher | None = None

    def loading(self, info: types_pb2.WorkerInfo) -> None:
        """What is known of the worker before its engine has loaded."""
        self._loading = info

    def loaded(self, worker: Worker, publisher: Publisher | None) -> None:
        """The worker serves, and is or will be in the mesh if somebody tells of it."""
        self._worker, self._publisher = worker, publisher

    async def describe(self, response: process_pb2.DescribeResponse) -> None:
        """Fill in what the worker knows."""
        response.package_versions["torch"] = package_version("torch")
        described = response.worker
        described.worker.CopyFrom(self._loading)
        described.kvstore_addresses.extend((self._config.member.kvstore or "").split(","))
        if self._config.member.kvstore is None:
            del described.kvstore_addresses[:]
            described.membership = process_pb2.MEMBERSHIP_ALONE
        if self._worker is not None:
            _describe_kv(self._worker, described)
        if self._publisher is not None:
            _describe_membership(self._publisher, described)


def _describe_kv(worker: Worker, described: process_pb2.WorkerDescription) -> None:
    described.worker.CopyFrom(worker.info)
    described.shares_kv_memory = worker.transports.shares_memory
    described.unreadable_worker_ids.extend(sorted(worker.transports.unreadable()))
    now = worker.failures.clock()
    for failure in worker.failures.all():
        described.kv_failures.add(
            worker_id=failure.worker_id,
            count=failure.num_failures,
            message=failure.message,
            age=timedelta(seconds=now - failure.failed_at),
        )


def _describe_membership(publisher: Publisher, described: process_pb2.WorkerDescription) -> None:
    described.kvstore_address = publisher.kvstore
    described.membership = _MEMBERSHIP[publisher.state]
    described.membership_error = publisher.refusal
    held = publisher.held()
    if held is not None:
        described.held.CopyFrom(digest_to_proto(held))


_log = structlog.get_logger(__name__)


def make_canary(engine: EngineInfo) -> types_pb2.Canary:
    """What routers compare with what they find themselves. Reads the tokenizer's files; for a thread.

    A folder without a tokenizer tells nothing of texts. One whose files are broken tells of no tokens at all,
    which no other does.
    """
    canary = types_pb2.Canary(version=CANARY_VERSION, block_digest=engine.canary)
    if engine.model_folder is None or not has_file(Path(engine.model_folder) / "tokenizer.json"):
        return canary
    canary.text_digest, canary.token_digest = _read(Path(engine.model_folder))
    # A tokenizer of 128,000 tokens takes 130 MiB, which nothing here will need again.
    give_back_freed_memory()
    return canary


def _read(folder: Path) -> tuple[bytes, bytes]:
    """Digests of the text and of its tokens."""
    # Here, because workers that are in no mesh need neither.
    from pagemesh.tokenizer import Tokenizer
    from pagemesh.tokenizer.canary import canary_text

    try:
        tokenizer = Tokenizer(folder)
    except ConfigError as error:
        _log.error("tokenizer_unusable", error=error.message)
        return b"", digest_token_ids([])
    try:
        return canary_text(tokenizer, chat=True)
    except UnsupportedError:
        return canary_text(tokenizer, chat=False)
