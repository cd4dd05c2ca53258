"""The worker's canary: how its model folder and its engine turn a conversation into names of KV blocks."""

from __future__ import annotations

from pathlib import Path

import structlog

from pagemesh.cache.block_hash import CANARY_VERSION, digest_token_ids
from pagemesh.core.engine import EngineInfo
from pagemesh.errors import ConfigError, UnsupportedError
from pagemesh.v1 import types_pb2
from pagemesh.worker.malloc import give_back_freed_memory

_log = structlog.get_logger(__name__)


def make_canary(engine: EngineInfo) -> types_pb2.Canary:
    """What routers compare with what they find themselves. Reads the tokenizer's files; for a thread.

    A folder without a tokenizer tells nothing of texts. One whose files are broken tells of no tokens at all,
    which no other does.
    """
    canary = types_pb2.Canary(version=CANARY_VERSION, block_digest=engine.canary)
    if engine.model_folder is None or not (Path(engine.model_folder) / "tokenizer.json").is_file():
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
