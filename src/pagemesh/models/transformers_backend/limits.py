"""How long a sequence may be in a model that transformers runs."""

from __future__ import annotations

from typing import Any

from pagemesh.errors import ConfigError


def choose_max_model_len(config: Any, wanted: int | None, where: str) -> int:
    """--max-model-len, or the model's own context, which it may not exceed."""
    own: int | None = getattr(config, "max_position_embeddings", None)
    if own is None:
        raise ConfigError(f"{where} lacks the key 'max_position_embeddings'")
    if wanted is not None and wanted > own:
        raise ConfigError(f"--max-model-len is {wanted}, but the model's own context is {own}")
    return wanted or own
