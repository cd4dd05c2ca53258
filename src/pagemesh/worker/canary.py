"""The worker's canary: how its model folder and its engine turn a conversation into names of KV blocks."""

from __future__ import annotations

from pathlib import Path

import structlog

from pagemesh.cache.canary import CANARY_VERSION, digest_token_ids
from pagemesh.engine.interface import EngineInfo
from pagemesh.errors import ConfigError, UnsupportedError
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)


def make_canary(engine: EngineInfo) -> types_pb2.Canary:
    """What routers compare with what they find themselves. Reads the tokenizer's files; for a thread.

    A folder without a tokenizer tells nothing of texts. One whose files are broken tells of no tokens at all,
    which no other does.
    """
    canary = types_pb2.Canary(version=CANARY_VERSION, block_digest=engine.canary)
    if engine.model_folder is None or not (Path(engine.model_folder) / "tokenizer.json").is_file():
        return canary
    # Here, because workers that are in no mesh need neither.
    from pagemesh.tokenizer import Tokenizer
    from pagemesh.tokenizer.canary import canary_text

    try:
        tokenizer = Tokenizer(Path(engine.model_folder))
    except ConfigError as error:
        _log.error("tokenizer_unusable", error=error.message)
        canary.token_digest = digest_token_ids([])
        return canary
    try:
        told = canary_text(tokenizer, chat=True)
    except UnsupportedError:
        told = canary_text(tokenizer, chat=False)
    canary.text_digest, canary.token_digest = told
    return canary
