"""Whether workers name a prompt's blocks as this router does: a worker that does not is degraded.

Looked up under other names than it gives, it would hold nothing, whatever it holds, and nothing else would show
that. So a router does not ask: it computes what every worker tells of a canary, and compares.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import structlog

from pagemesh.cache.block_hash import CANARY_VERSION, BlockHasher
from pagemesh.errors import UnsupportedError
from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import MemberChange, WorkerState
from pagemesh.router.roles import ROLES
from pagemesh.router.routing.candidate import Role
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.canary import CanaryText, canary_text
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)

_MAX_BLOCK_SIZE: Final = 65_536
"""Tokens; a worker must not make the router name more than this for it."""


class Difference(enum.Enum):
    """The first step at which a worker comes to something else."""

    TEMPLATE = "template"
    TOKENIZER = "tokenizer"
    HASHING = "hashing"
    UNKNOWN = "unknown"
    """It tells nothing that could be compared."""


_ADVICE: Final = {
    Difference.TEMPLATE: "its chat template renders a conversation otherwise than the router's: give both the"
    " same model folder, or the same chat_template.jinja and tokenizer_config.json, and restart them",
    Difference.TOKENIZER: "its tokenizer makes other token ids of a text than the router's: give both the same"
    " model folder, or the same tokenizer.json, and restart them",
    Difference.HASHING: "its engine names the blocks of the same token ids otherwise: run the same version of"
    " pagemesh everywhere",
    Difference.UNKNOWN: "it does not tell how it names blocks, or another version of pagemesh does: run the same"
    " version everywhere",
}


class Degraded(NamedTuple):
    """A worker that gets no credit for what it holds."""

    worker_id: str
    model_name: str
    role: Role
    difference: Difference

    @property
    def advice(self) -> str:
        """What is wrong, and what to do."""
        return _ADVICE[self.difference]


class _Canaries:
    """What the router itself makes of the canary for one model; made when it is needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def chat(self) -> CanaryText | None:
        """None where the router has no chat template."""
        try:
            return canary_text(self._tokenizer, chat=True)
        except UnsupportedError:
            return None

    @cached_property
    def plain(self) -> CanaryText:
        """Of a text without a conversation."""
        return canary_text(self._tokenizer, chat=False)


class Parity:
    """Compares every worker of the router's models when it joins. Belongs to one event loop."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer]) -> None:
        """`tokenizers` are those of the router's models, by their names."""
        self._canaries = {name: _Canaries(tokenizer) for name, tokenizer in tokenizers.items()}
        self._degraded: dict[str, Degraded] = {}

    def follow(self, directory: Directory) -> None:
        """Judge the workers that are known now, and those that join from now on."""
        directory.subscribe(self._on_change)

    def own_canaries(self) -> Iterator[tuple[str, types_pb2.Canary]]:
        """What the router itself makes of the canary for each model, by name; the blocks' names depend on workers."""
        for name, own in self._canaries.items():
            text = own.chat or own.plain
            yield (
                name,
                types_pb2.Canary(
                    version=CANARY_VERSION,
                    text_digest=text.text_digest,
                    token_digest=text.token_digest,
                ),
            )

    def is_degraded(self, worker_id: str) -> bool:
        """Whether a worker's blocks must not be looked for."""
        return worker_id in self._degraded

    def degraded(self) -> list[Degraded]:
        """All such workers, in order of joining."""
        return list(self._degraded.values())

    def _on_change(self, change: MemberChange, worker: WorkerState) -> None:
        self._degraded.pop(worker.worker_id, None)
        role = ROLES.get(worker.role)
        if worker.info.model_name not in self._canaries or role is None:
            return
        if change is not MemberChange.JOINED:
            return
        difference = self.compare(worker.info)
        if difference is not None:
            self._degraded[worker.worker_id] = Degraded(
                worker.worker_id, worker.info.model_name, role, difference
            )
            _log.error(
                "worker_degraded",
                worker_id=worker.worker_id,
                epoch=worker.info.epoch,
                reason=difference.value,
                advice=_ADVICE[difference],
            )

    def compare(self, info: types_pb2.WorkerInfo) -> Difference | None:
        """Where a worker of one of the models differs; None when it names blocks as the router does.

        What it has no files for is not compared: only the router needs them.
        """
        told, block_size = info.canary, info.kv_layout.block_size
        if told.version != CANARY_VERSION or not told.block_digest or block_size > _MAX_BLOCK_SIZE:
            return Difference.UNKNOWN
        own = self._canaries[info.model_name]
        if told.text_digest:
            if own.chat is None or told.text_digest != own.chat.text_digest:
                return Difference.TEMPLATE
            own_tokens = own.chat.token_digest
        else:
            own_tokens = own.plain.token_digest
        if told.token_digest and told.token_digest != own_tokens:
            return Difference.TOKENIZER
        own_blocks = _name_canary(
            info.model_fingerprint, block_size, info.kv_layout.dtype, info.arithmetic
        )
        return None if told.block_digest == own_blocks else Difference.HASHING


@lru_cache(maxsize=64)
def _name_canary(model_fingerprint: str, block_size: int, kv_dtype: str, arithmetic: str) -> bytes:
    return BlockHasher(model_fingerprint, block_size, kv_dtype, arithmetic).canary()
