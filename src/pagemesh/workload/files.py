"""Files that a flag names; whatever is wrong with one is told with the flag."""

from __future__ import annotations

from pathlib import Path

from pagemesh.errors import ConfigError


def read_text(flag: str, path: str) -> str:
    """All of a file. ConfigError when it cannot be read or has nothing in it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"{flag} is {path!r}: {reason}") from error
    if not text.strip():
        raise ConfigError(f"{flag} is {path!r}, which has no requests")
    return text


def require_writable(flag: str, path: str) -> None:
    """Raise ConfigError unless a file can be written: asked before there is anything to write."""
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: {error.strerror}") from error


def write_text(flag: str, path: str, text: str) -> None:
    """Write a file; ConfigError when it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: {error.strerror}") from error
