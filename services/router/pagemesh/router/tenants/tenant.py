"""The nouns: who calls, and what they may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagemesh.config.router import OutputPolicy

DEFAULT_TENANT: Final = "default"
"""Whose keys those of `--api-key` are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may use, over all routers; None means as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers."""
    concurrent_requests: int | None = None
    max_output_tokens: int | None = None
    """Of each answer, whichever router makes it."""
    max_output_tokens_policy: OutputPolicy = "cut"
    """What becomes of requests for more."""
    weight: float = 1.0
    """What it gets when requests queue, relative to others."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody with keys, limits and a cache of their own."""

    name: str
    """Empty where no keys are asked for."""

    limits: Limits = Limits()
