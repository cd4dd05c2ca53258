"""What a model's folder says of how it wants to be used: sampling defaults, and lengths of embeddings.

Sampling defaults are those of generation_config.json, read as vLLM reads them. Embeddings may be shorter where a model
was trained for it and puts first what matters most (Kusupati et al. 2022, "Matryoshka Representation Learning",
https://arxiv.org/abs/2205.13147).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pagemesh.config.router import GenerationConfig, check_generation_value
from pagemesh.errors import ConfigError, InvalidRequestError
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

    most_tokens: int | None = None
    """The same where a request asks for more: the operator's own limit, and none of the model's."""


_MODELS_OWN: Final = GenerationConfig()


def load_generation_defaults(
    folder: Path, settings: GenerationConfig = _MODELS_OWN
) -> GenerationDefaults:
    """Defaults of a model folder, or of what the settings say instead; ConfigError for a value that cannot be.

    Unlike vLLM, an explicit `do_sample: false` without a temperature means greedy: the model's authors
    wrote it down on purpose, as transformers leaves it out when it is merely the default.
    """
    file, read = _read_file(folder, settings)
    overrides = settings.overrides
    config = {**read, **overrides}

    def number(key: str, default: float) -> float:
        check_generation_value(str(file), key, read.get(key))
        value: float | None = config.get(key)
        return default if value is None else value

    greedy = config.get("do_sample") is False
    max_tokens = int(number("max_new_tokens", 0)) or None
    is_operators = settings.folder is not None or overrides.get("max_new_tokens") is not None
    return GenerationDefaults(
        temperature=number("temperature", 0.0 if greedy else 1.0),
        top_p=number("top_p", 1.0),
        top_k=max(0, int(number("top_k", 0))),
        min_p=number("min_p", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
        max_tokens=max_tokens,
        most_tokens=max_tokens if is_operators else None,
    )


def _read_file(folder: Path, settings: GenerationConfig) -> tuple[Path, dict[str, Any]]:
    """The file that holds for a model, and what is in it."""
    name = "generation_config.json"
    file = Path(settings.folder or folder) / name
    if settings.generation_config == "vllm":
        return file, {}
    if settings.folder is not None and not file.is_file():
        raise ConfigError(
            f"--generation-config is {settings.folder!r}, but must be auto, vllm or a folder with {name}"
        )
    return file, read_json(file.parent, name)


_UNIT_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """Which lengths a model's vectors may be cut to."""

    is_trained: bool = False
    """Whether they may be cut at all."""

    lengths: tuple[int, ...] | None = None
    """The only ones; None for all."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """vLLM's keys of config.json: `is_matryoshka` and `matryoshka_dimensions`.

        ConfigError for values that they cannot have.
        """
        config = read_json(folder, "config.json")
        lengths = config.get("matryoshka_dimensions")
        if lengths is not None and not (
            isinstance(lengths, list) and lengths and all(type(n) is int and n > 0 for n in lengths)
        ):
            raise ConfigError(
                f"{folder / 'config.json'}: matryoshka_dimensions is {lengths!r}, but must be a list"
                " of positive integers"
            )
        is_trained = lengths is not None or config.get("is_matryoshka") is True
        return cls(is_trained, None if lengths is None else tuple(lengths))

    def check(self, wanted: int) -> None:
        """Raise InvalidRequestError unless vectors may be cut to so many numbers."""
        if not self.is_trained:
            raise InvalidRequestError(
                f"dimensions is {wanted}, but the model was not trained for shorter vectors than its own",
                param="dimensions",
            )
        if self.lengths is not None and wanted not in self.lengths:
            listed = ", ".join(map(str, self.lengths))
            raise InvalidRequestError(
                f"dimensions is {wanted}, but the model's may be {listed}", param="dimensions"
            )


def shorten(vector: Sequence[float], wanted: int) -> Sequence[float]:
    """The first numbers; a vector of length 1 has it again. InvalidRequestError if there are fewer."""
    if wanted > len(vector):
        raise InvalidRequestError(
            f"dimensions is {wanted}, but the model's vectors have {len(vector)}",
            param="dimensions",
        )
    first = vector[:wanted]
    norm = math.hypot(*first)
    if norm == 0 or abs(math.hypot(*vector) - 1) > _UNIT_TOLERANCE:
        return first
    return [value / norm for value in first]
