"""What the environment says instead of the command line, where other users of the machine would see it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

API_KEY_VARIABLE: Final = "PAGEMESH_API_KEY"
"""One key, or several with commas in between."""


def api_keys_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that routers ask for and clients send, where nothing else says which."""
    keys = (key.strip() for key in environment.get(API_KEY_VARIABLE, "").split(","))
    return tuple(key for key in keys if key)
