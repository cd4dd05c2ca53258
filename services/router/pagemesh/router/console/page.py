"""The page's files, with the headers that they are served with."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final, NamedTuple

PAGE: Final = "page.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Nothing but the page's own files runs, and nothing but this origin is asked for anything."""

_HEADERS: Final = (
    ("cache-control", "no-cache"),
    ("content-security-policy", _POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
)


class Asset(NamedTuple):
    """One file."""

    content_type: str
    data: bytes
    etag: str

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Of an answer with it; a browser asks each time whether it changed, as another router may answer."""
        return (*_HEADERS, ("etag", self.etag))

    def is_known_to(self, if_none_match: str) -> bool:
        """Whether a client has it already, by its header."""
        # Proxies that compress make weak tags of strong ones.
        known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        return self.etag in known or "*" in known


class PageFiles:
    """All files, read once."""

    def __init__(self) -> None:
        folder = resources.files("pagemesh.router.console").joinpath("assets")
        self._assets = {
            file.name: _asset(file.name, file.read_bytes()) for file in folder.iterdir()
        }

    def find(self, name: str) -> Asset | None:
        """The file of that name, the page for none; None if there is no such file."""
        return self._assets.get(name or PAGE)


def _asset(name: str, data: bytes) -> Asset:
    kind = _TYPES[name[name.rindex(".") :]]
    return Asset(kind, data, f'"{hashlib.sha256(data).hexdigest()[:16]}"')
