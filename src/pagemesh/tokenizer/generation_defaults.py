"""Sampling defaults that a model brings along in generation_config.json, read as vLLM reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pagemesh.errors import ConfigError
from pagemesh.tokenizer.folder import read_json


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What holds when a request says nothing."""

    temperature: float = 1.0
    """0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps all."""

    min_p: float = 0.0
    """Least probability kept, relative to the likeliest token's; 0 keeps all."""

    repetition_penalty: float = 1.0
    """1 leaves the logits of tokens that were there before as they are."""

    max_tokens: int | None = None
    """Most tokens generated; none means as many as the context has room for."""


def load_generation_defaults(folder: Path) -> GenerationDefaults:
    """Defaults of a model folder; raises ConfigError for a value that no request could have.

    Unlike vLLM, an explicit `do_sample: false` without a temperature means greedy: the model's authors
    wrote it down on purpose, as transformers leaves it out when it is merely the default.
    """
    config = read_json(folder, "generation_config.json")

    def number(key: str, default: float, low: float, high: float) -> float:
        value = config.get(key)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            path = folder / "generation_config.json"
            raise ConfigError(f"{path}: {key} is {value!r}, but must be in [{low}, {high}]")
        return value

    greedy = config.get("do_sample") is False
    max_tokens = int(number("max_new_tokens", 0, 1, 2**31 - 1))
    return GenerationDefaults(
        temperature=number("temperature", 0.0 if greedy else 1.0, 0, 2),
        top_p=number("top_p", 1.0, 1e-6, 1),
        top_k=max(0, int(number("top_k", 0, -1, 2**31 - 1))),
        min_p=number("min_p", 0.0, 0, 1),
        repetition_penalty=number("repetition_penalty", 1.0, 1e-6, 1e6),
        max_tokens=max_tokens or None,
    )
