"""What holds for sampling in requests that say nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagemesh.config.environment import read_object, require
from pagemesh.errors import ConfigError

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (1e-6, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 1e6),
    "max_new_tokens": (1, 2**31 - 1),
}
"""What numbers of generation_config.json may be, as requests may have them."""

_KEYS: Final = (*_BOUNDS, "do_sample")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Where they come from, under vLLM's names."""

    generation_config: str = "auto"
    """Whose defaults of sampling hold: auto, those of generation_config.json in the model's folder; vllm, neutral
    ones; or those of such a file in the folder that is named here, whose max_new_tokens no request may exceed. Where
    answers end is up to the model's own file in any case."""

    override_generation_config: str = "{}"
    """JSON object with values that replace those, such as {"temperature": 0.5}: temperature, top_p, top_k, min_p,
    repetition_penalty, do_sample, and max_new_tokens, which no request may exceed then."""

    seed: int | None = None
    """Seed from which each router draws those of requests that bring none, one after the other: asked for the same in
    the same order after its start, it gives the same answers. Unset, every answer has a seed by chance."""

    def __post_init__(self) -> None:
        require(self.generation_config != "", "--generation-config", "", "auto, vllm or a folder")
        for key, value in self.overrides.items():
            check_generation_value("--override-generation-config", key, value)

    @property
    def folder(self) -> str | None:
        """The folder that is named; None for none."""
        return None if self.generation_config in ("auto", "vllm") else self.generation_config

    @property
    def overrides(self) -> dict[str, Any]:
        """The values that replace others. Raises ConfigError for what is no JSON object, or has unknown keys."""
        found = read_object("--override-generation-config", self.override_generation_config)
        for key in found:
            if key not in _KEYS:
                raise ConfigError(
                    f"--override-generation-config has {key!r}, but may have only {', '.join(_KEYS)}"
                )
        return found


def check_generation_value(where: str, key: str, value: object) -> None:
    """Raise ConfigError for a value that cannot be, null aside, with where it stands."""
    if value is None:
        return
    if key == "do_sample":
        is_right, expected = isinstance(value, bool), "true or false"
    else:
        low, high = _BOUNDS[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_right = is_number and low <= value <= high  # type: ignore[operator]
        expected = f"in [{low}, {high}]"
    if not is_right:
        raise ConfigError(f"{where}: {key} is {value!r}, but must be {expected}")
