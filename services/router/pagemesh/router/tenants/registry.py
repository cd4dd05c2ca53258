"""Which keys are asked for now: those of the command line, and those of the key file as it was last read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagemesh.config.environment import api_keys_of_environment
from pagemesh.config.router import TenantsConfig
from pagemesh.errors import ConfigError, UnauthenticatedError
from pagemesh.router.tenants.key_file import KeyFileContent, read_content, tenants_by_key
from pagemesh.router.tenants.keys import KeyRing, digest_of
from pagemesh.router.tenants.tenant import DEFAULT_TENANT, Limits, Tenant

_NUM_SHOWN_CHARS = 5
_MIN_SECRET_CHARS = 16
"""Of a shorter key, nothing is shown."""


class Registry:
    """Finds the tenant of a key."""

    def __init__(self, config: TenantsConfig) -> None:
        """Read the key file; ConfigError naming what is wrong with it."""
        self._digests = [digest_of(key) for key in config.api_key or api_keys_of_environment()]
        self._defaults = Limits(
            config.requests_per_minute,
            config.tokens_per_minute,
            config.concurrent_requests,
            config.max_output_tokens,
            config.max_output_tokens_policy,
        )
        self._anybody = Tenant("", self._defaults)
        self.key_file = None if config.api_key_file is None else Path(config.api_key_file)
        self._ring = KeyRing({})
        self._set(KeyFileContent())
        if self.key_file is not None:
            self._read(self.key_file)

    @property
    def asks_for_keys(self) -> bool:
        """Whether calls without a key are refused; a key file without keys refuses all."""
        return bool(self._digests) or self.key_file is not None

    def tenant_of(self, key: str | None) -> Tenant:
        """Who calls with this key, or without one; UnauthenticatedError when nobody may."""
        if not self.asks_for_keys:
            return self._anybody
        if not key:
            raise UnauthenticatedError(
                "You didn't provide an API key. Send it as the header `authorization: Bearer KEY`, or "
                "`x-api-key: KEY`"
            )
        tenant = self._ring.find(key)
        if tenant is None:
            raise UnauthenticatedError(f"Incorrect API key provided{_hint(key)}")
        return tenant

    def load(self, data: bytes) -> int:
        """Replace what the key file said before; the number of its tenants. ConfigError changes nothing."""
        content = read_content(_text(data))
        self._set(content)
        return len(content.tenants)

    def _read(self, path: Path) -> None:
        try:
            self.load(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"--api-key-file is {str(path)!r}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"--api-key-file is {str(path)!r}: {error.message}") from error

    def _set(self, content: KeyFileContent) -> None:
        found: Mapping[bytes, Tenant] = tenants_by_key(content, self._defaults)
        entry = content.tenants.get(DEFAULT_TENANT)
        limits = self._defaults if entry is None else entry.limits(self._defaults)
        own = dict.fromkeys(self._digests, Tenant(DEFAULT_TENANT, limits))
        self._ring = KeyRing({**found, **own})


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8") from error


def _hint(key: str) -> str:
    """Enough of a key to see which of one's own it is, and nothing of one that it would give away."""
    if len(key) < _MIN_SECRET_CHARS or not (key.isascii() and key.isprintable()):
        return ""
    return f": {key[:_NUM_SHOWN_CHARS]}…"
