"""Variables of vLLM's in the environment: what those that are set mean here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pagemesh.cli.vllm.adapt import Adapted
from pagemesh.config.environment import API_KEY_VARIABLE

API_KEY: Final = "VLLM_API_KEY"
READY_TIMEOUT: Final = "VLLM_ENGINE_READY_TIMEOUT_S"
LOGGING_LEVEL: Final = "VLLM_LOGGING_LEVEL"

READ: Final[Mapping[str, tuple[str, str]]] = {
    API_KEY: ("--api-key", "the key that clients must send"),
    READY_TIMEOUT: ("--start-timeout", "seconds that the start may take"),
    LOGGING_LEVEL: ("--log-level", "the least level that is logged"),
}
"""Those with a meaning: the flag that says the same, and what it is."""

_LEVELS: Final = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"}

_PREFIX: Final = "VLLM_"

_WEEK: Final = 7 * 24 * 3600


def add_environment(adapted: Adapted, environment: Mapping[str, str]) -> None:
    """Add what vLLM's variables say where no flag does; a fault in one is a note, and no more."""
    read = []
    for name, (flag, means) in READ.items():
        text = environment.get(name, "").strip()
        if (
            not text
            or flag in adapted.flags
            or (name == API_KEY and environment.get(API_KEY_VARIABLE))
        ):
            continue
        value = _VALUES[name](text)
        if value is None:
            adapted.notes.append(
                f"{name} of the environment is not heeded: {text!r} is not {means}"
            )
            continue
        adapted.arguments += [flag, value]
        read.append(f"{name} ({means}, {flag})")
    if read:
        adapted.notes.append(f"of the environment, heeded: {', '.join(read)}")
    others = [name for name in environment if name.startswith(_PREFIX) and name not in READ]
    if others:
        adapted.notes.append(
            f"of the environment, without effect here: {', '.join(sorted(others))}"
        )


def _seconds(text: str) -> str | None:
    try:
        return text if 1 <= float(text) <= _WEEK else None
    except ValueError:
        return None


_VALUES: Final[Mapping[str, Callable[[str], str | None]]] = {
    API_KEY: str,
    READY_TIMEOUT: _seconds,
    LOGGING_LEVEL: lambda text: _LEVELS.get(text.upper()),
}
