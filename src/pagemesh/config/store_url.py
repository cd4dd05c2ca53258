"""Where a Redis is, as the command line names it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pagemesh.config.checks import require

_FORMS = "memory, redis://host:port/db, rediss://host:port/db or unix:///path?db=db"


def check_store_url(flag: str, url: str) -> None:
    """Raise ConfigError unless it names a server and, if at all, a database by its number.

    A client that took no notice of a database that is no number would use database 0, maybe another mesh's.
    """
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        require(False, flag, shown, f"{_FORMS}: {error}")
        return
    require(parts.scheme in ("redis", "rediss", "unix"), flag, shown, _FORMS)
    if parts.scheme == "unix":
        require(not parts.netloc.rpartition("@")[2] and len(parts.path) > 1, flag, shown, _FORMS)
    else:
        is_number = re.fullmatch(r"/?|/\d{1,9}", parts.path) is not None
        require(is_number, flag, shown, f"{_FORMS}, where db is a number")


def without_password(url: str) -> str:
    """The URL to be shown: a name and a password in it are left out."""
    return re.sub(r"(?<=//).*@", "", url, count=1)
