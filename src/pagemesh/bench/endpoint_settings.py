"""Where the endpoint of `pagemesh bench serve` is, and what every request to it has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pagemesh.config.environment import require, require_seconds

_PATHS: Final = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
_MODELS_PATH: Final = "/v1/models"


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """The endpoint. A key for it is taken from OPENAI_API_KEY, or else PAGEMESH_API_KEY, of the environment."""

    backend: Literal["openai", "openai-chat"] = "openai"
    """openai asks for completions of texts, openai-chat sends each prompt as a chat's only message."""

    base_url: str | None = None
    """http://host:port or https://host:port of the server, in place of --host and --port; with a path when --endpoint
    lies behind one."""

    host: str = "127.0.0.1"
    """Host of the server."""

    port: int = 8000
    """Its port."""

    endpoint: str | None = None
    """Path of the endpoint; /v1/completions or /v1/chat/completions when unset, as --backend has it."""

    model: str | None = None
    """Model to ask for; the first one of /v1/models when unset."""

    tokenizer: str | None = None
    """Folder or Hugging Face hub id of the model's tokenizer, which prompts are made with; --model when unset."""

    ignore_eos: bool = False
    """Have every answer run to its full length, as all of --dataset-name random do anyway."""

    temperature: float | None = None
    """Of sampling; the server's own when unset."""

    extra_body: str | None = None
    """JSON object with further fields of every request, which come before all others; null takes one away."""

    header: tuple[str, ...] = ()
    """KEY=VALUE for each further header of every request."""

    insecure: bool = False
    """Take any certificate for the server's."""

    request_timeout: float = 600.0
    """Seconds that a request may take in all; it has failed then."""

    ready_check_timeout_sec: float = 0.0
    """Seconds to wait for a server that is not there yet. One short request is sent beforehand in any case."""

    def __post_init__(self) -> None:
        if self.base_url is not None:
            require(
                _is_url(self.base_url),
                "--base-url",
                self.base_url,
                "http://host:port or https://host:port",
            )
        require(1 <= self.port <= 65535, "--port", self.port, "between 1 and 65535")
        path = self.endpoint
        require(
            path is None or path.startswith("/"), "--endpoint", path, "a path that begins with /"
        )
        temperature = self.temperature
        is_fine = temperature is None or 0 <= temperature <= 100
        require(is_fine, "--temperature", temperature, "from 0 to 100")
        require(_is_object(self.extra_body), "--extra-body", self.extra_body, "a JSON object")
        for pair in self.header:
            is_pair = pair.find("=") > 0 and pair.isprintable() and pair.isascii()
            require(is_pair, "--header", pair, "KEY=VALUE")
        require_seconds("--request-timeout", self.request_timeout, most=7 * 24 * 3600)
        wait = self.ready_check_timeout_sec
        require(
            0 <= wait <= 24 * 3600, "--ready-check-timeout-sec", wait, "from 0 to 86,400 seconds"
        )

    @property
    def url(self) -> str:
        """What requests are posted to."""
        return self._root + (self.endpoint or _PATHS[self.backend])

    @property
    def models_url(self) -> str:
        """What lists the models."""
        return self._root + _MODELS_PATH

    @property
    def extra_fields(self) -> dict[str, Any]:
        """Those of --extra-body."""
        return json.loads(self.extra_body) if self.extra_body else {}

    @property
    def headers(self) -> dict[str, str]:
        """Those of --header."""
        pairs = (pair.partition("=") for pair in self.header)
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def _root(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query


def _is_object(text: str | None) -> bool:
    if text is None:
        return True
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
