"""Reads a model with transformers: from a local folder, safetensors only, never running its own code."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend.attention import PAGED, register


def read_config(folder: Path) -> transformers.PreTrainedConfig:
    """config.json as transformers understands it; ConfigError when it knows no such model."""
    with quietly(folder / "config.json"):
        config: transformers.PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return config


def model_class(config: transformers.PreTrainedConfig) -> type[Any] | None:
    """The class that transformers runs such a model with as a causal language model, if it has one.

    Its models can be given pagemesh's attention.
    """
    register()
    classes: Any = transformers.AutoModelForCausalLM._model_mapping
    cls: type[Any] | None = classes.get(type(config), None)
    return cls


def read_model(
    folder: Path, cls: type[Any], config: transformers.PreTrainedConfig, dtype: torch.dtype
) -> Any:
    """The model with its weights in a type. ConfigError unless every weight is there and fits."""
    with quietly(folder):
        model, info = cls.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=PAGED,
            # Named below; transformers itself would only print them.
            ignore_mismatched_sizes=True,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    _check_loading(folder, info)
    return model


def _check_loading(folder: Path, info: Mapping[str, Any]) -> None:
    for key, shape, wanted in sorted(info["mismatched_keys"]):
        raise ConfigError(
            f"{folder} has the tensor {key} with shape {list(shape)}, but config.json asks for "
            f"{list(wanted)}"
        )
    for key in sorted(info["missing_keys"]):
        raise ConfigError(f"{folder} lacks the tensor {key}")
    for key in sorted(info["unexpected_keys"]):
        raise ConfigError(f"{folder} has the tensor {key}, which config.json has no place for")


@contextmanager
def quietly(where: Path) -> Iterator[None]:
    """Without bars and reports on the terminal; every error becomes a ConfigError in one sentence."""
    terminal: Any = transformers.logging
    verbosity, has_bars = terminal.get_verbosity(), terminal.is_progress_bar_enabled()
    terminal.set_verbosity(logging.CRITICAL)
    terminal.disable_progress_bar()
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # The one boundary to transformers' loading, which raises whatever a model's code raises.
        first_line = next(iter(str(error).splitlines()), "no details")
        raise ConfigError(
            f"{where} cannot be read by transformers {transformers.__version__}: "
            f"{type(error).__name__}: {first_line}"
        ) from error
    finally:
        terminal.set_verbosity(verbosity)
        if has_bars:
            terminal.enable_progress_bar()
