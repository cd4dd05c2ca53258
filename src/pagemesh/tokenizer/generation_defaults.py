"""Sampling defaults that a model brings along in generation_config.json, read as vLLM reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pagemesh.config.generation import GenerationConfig, check_generation_value
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
