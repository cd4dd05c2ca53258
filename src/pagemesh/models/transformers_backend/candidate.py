"""What a folder's config.json asks transformers for, as far as it can be served without seeing weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend.judging import check_class, check_rope
from pagemesh.models.transformers_backend.reading import model_class, read_config


class Candidate(NamedTuple):
    """A model that transformers may run."""

    cls: type[Any]
    config: Any  # transformers'
    text_config: Any  # the part of it that is about text
    max_model_len: int  # longest prompt plus output in tokens


def read_candidate(folder: Path, max_model_len: int | None) -> Candidate:
    """Read config.json; `max_model_len` None is the model's own context.

    Raises ConfigError for what is known to be impossible without weights.
    """
    where = str(folder / "config.json")
    config = read_config(folder)
    cls = model_class(config)
    check_class(cls, config, where)
    assert cls is not None
    text_config = config.get_text_config(decoder=True)
    max_model_len = _choose_max_model_len(text_config, max_model_len, where)
    check_rope(text_config, max_model_len, where)
    return Candidate(cls, config, text_config, max_model_len)


def _choose_max_model_len(config: Any, wanted: int | None, where: str) -> int:
    own: int | None = getattr(config, "max_position_embeddings", None)
    if own is None:
        raise ConfigError(f"{where} lacks the key 'max_position_embeddings'")
    if wanted is not None and wanted > own:
        raise ConfigError(f"--max-model-len is {wanted}, but the model's own context is {own}")
    return wanted or own
