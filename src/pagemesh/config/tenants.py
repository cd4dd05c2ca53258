"""Who may call, and how much."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from pagemesh.config.environment import require

TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names stand in headers and logs."""

OutputPolicy = Literal["cut", "refuse"]
"""What becomes of a request for more output tokens than it may have."""


@dataclass(frozen=True, slots=True)
class TenantsConfig:
    """API keys, the tenants that they belong to, and limits."""

    api_key: tuple[str, ...] = field(default=(), repr=False)
    """Keys, one of which clients must send as `authorization: Bearer KEY` or `x-api-key: KEY`; all belong to the
    tenant "default". Other users of the machine can read command lines: PAGEMESH_API_KEY in the environment says
    the same when this is unset, with commas between keys. Without any key or file, everybody may call."""

    api_key_file: str | None = None
    """YAML or JSON file with tenants, the hashes of their keys and their limits, as `pagemesh keys new` writes it.
    Read again whenever it changes; one that cannot be read changes nothing."""

    requests_per_minute: int | None = None
    """Requests that each tenant may begin in a minute, if the key file does not say otherwise; all clients together
    without keys. More are refused with 429."""

    tokens_per_minute: int | None = None
    """Tokens of prompts and answers that each tenant may use in a minute, likewise. Prompt and max_tokens are
    reserved when a request begins; what was not used is given back when it ends."""

    concurrent_requests: int | None = None
    """Requests of each tenant that may run at the same time, likewise."""

    max_output_tokens: int | None = None
    """Tokens that each answer of a tenant may have at most, likewise: each of a request's `n`, and also those of
    requests that say nothing about it."""

    max_output_tokens_policy: OutputPolicy = "cut"
    """What becomes of requests for more, likewise: cut gives them as many as they may have, and they end with
    finish_reason "length", as in vLLM; refuse answers 400."""

    open_metrics: bool = False
    """Show /metrics, of the gateway as well, to whoever asks: scrapers that were made for vLLM send no key. Without
    keys it is open anyway."""

    limits_shared_by: int = 1
    """Routers that clients are divided among: each allows its part of all limits."""

    @property
    def asks_for_keys(self) -> bool:
        """Whether these settings alone say that calls without a key are refused; a file without keys does."""
        return bool(self.api_key) or self.api_key_file is not None

    def __post_init__(self) -> None:
        for key in self.api_key:
            # The key itself is not shown.
            is_sendable = key.isascii() and key.isprintable() and not set(key) & set(" ,") and key
            require(bool(is_sendable), "--api-key", "***", "printable, without spaces and commas")
        for name in (
            "requests_per_minute",
            "tokens_per_minute",
            "concurrent_requests",
            "max_output_tokens",
            "limits_shared_by",
        ):
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            require(value is None or value > 0, flag, value, "positive")
