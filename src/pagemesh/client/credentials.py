"""The key that a client sends."""

from __future__ import annotations

from pagemesh.config.environment import api_keys_of_environment

Metadata = tuple[tuple[str, str], ...]


def key_metadata(api_key: str | None) -> Metadata:
    """Metadata of every call: the key, or that of the environment; nothing without either."""
    key = api_key or next(iter(api_keys_of_environment()), None)
    return () if key is None else (("authorization", f"Bearer {key}"),)
