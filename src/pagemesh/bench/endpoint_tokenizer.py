"""The tokenizer that prompts for an endpoint are made with."""

from __future__ import annotations

from pagemesh.bench.settings import BenchServeConfig
from pagemesh.config.served import find_local
from pagemesh.errors import ConfigError
from pagemesh.models.resolve import resolve_model_path
from pagemesh.tokenizer.tokenizer import Tokenizer


def endpoint_tokenizer(config: BenchServeConfig, model: str) -> str:
    """Its folder or hub id. Raises ConfigError when neither --tokenizer nor the model's name is one."""
    name = config.endpoint.tokenizer
    if name is None and "/" not in model and find_local(model) is None:
        raise ConfigError(
            f"--tokenizer is unset, but must be a folder or a hub id: the model's name, {model!r}, is none"
        )
    return name or model


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer itself. Raises ConfigError when it cannot be found."""
    try:
        return Tokenizer(resolve_model_path(name, need="tokenizer"))
    except ConfigError as error:
        raise ConfigError(error.message.replace("--model is", "--tokenizer is", 1)) from error
