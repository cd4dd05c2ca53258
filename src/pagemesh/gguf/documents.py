"""The files of a model's folder, as they are or, where a GGUF file stands in its place, made of its metadata.

A model's path is that of a folder or of a GGUF file. Whoever reads `path / "config.json"` by these functions need not know
which: nothing is written, and errors name the GGUF file as if it was the folder.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pagemesh.gguf.config import config_json
from pagemesh.gguf.model import GgufModel, is_gguf, open_gguf
from pagemesh.gguf.tokenizer import generation_config, tokenizer_config, tokenizer_json

_DOCUMENTS: Final[Mapping[str, Callable[[GgufModel], Mapping[str, Any]]]] = {
    "config.json": config_json,
    "generation_config.json": generation_config,
    "tokenizer.json": tokenizer_json,
    "tokenizer_config.json": tokenizer_config,
}


def has_file(path: Path) -> bool:
    """Whether a model has a file of this name, `path` being that of the model and the name."""
    return path.name in _DOCUMENTS if is_gguf(path.parent) else path.is_file()


def read_file(path: Path) -> str:
    """The text of a model's file.

    OSError and UnicodeDecodeError as from `Path.read_text`, ConfigError for what is wrong with a GGUF file.
    """
    if not is_gguf(path.parent):
        return path.read_text(encoding="utf-8")
    make = _DOCUMENTS.get(path.name)
    if make is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    model = open_gguf(path.parent)
    if path.name not in model.texts:
        model.texts[path.name] = json.dumps(make(model), ensure_ascii=False)
    return model.texts[path.name]
