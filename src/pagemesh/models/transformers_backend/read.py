"""Reads a model with transformers: from a local folder, safetensors only, never running its own code.

A folder's config.json alone says what it asks transformers for, as far as it can be served without seeing weights, and
what the model would take: for that it is built without memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend.attention import (
    PAGED,
    WATCHED,
    AttentionCall,
    answering,
    register,
)
from pagemesh.models.transformers_backend.judge import NUM_PROBE_TOKENS, check_class, check_rope

_QUANTISED_KEYS: Final = frozenset(("quantization_config", "compression_config"))
"""Of config.json, by which transformers would read codes itself."""


class Candidate(NamedTuple):
    """A model that transformers may run."""

    cls: type[Any]
    config: Any  # transformers'
    text_config: Any  # the part of it that is about text
    max_model_len: int  # longest prompt plus output in tokens


def read_candidate(folder: Path, max_model_len: int | None) -> Candidate:
    """Read config.json; `max_model_len` None is the model's own context.

    Raises ConfigError for what is known to be impossible without weights.
    """
    where = str(folder / "config.json")
    config = read_config(folder)
    cls = model_class(config)
    check_class(cls, config, where)
    assert cls is not None
    text_config = config.get_text_config(decoder=True)
    max_model_len = _choose_max_model_len(text_config, max_model_len, where)
    check_rope(text_config, max_model_len, where)
    return Candidate(cls, config, text_config, max_model_len)


def _choose_max_model_len(config: Any, wanted: int | None, where: str) -> int:
    own: int | None = getattr(config, "max_position_embeddings", None)
    if own is None:
        raise ConfigError(f"{where} lacks the key 'max_position_embeddings'")
    if wanted is not None and wanted > own:
        raise ConfigError(f"--max-model-len is {wanted}, but the model's own context is {own}")
    return wanted or own


class Outline(NamedTuple):
    """The numbers that memory depends on."""

    architecture: str
    num_parameters: int  # tied ones count once
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    inner_size: int  # the widest side of a layer's matrices, for all experts that a token goes to
    vocab_size: int
    max_model_len: int


class _FirstCallError(Exception):
    """Ends a forward pass: all layers have heads of one shape."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call


class _FirstCalls:
    """`WatchedCalls` that look at the first call alone."""

    def make_mask(self, **request: Any) -> None:
        """No mask: nothing is computed."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        raise _FirstCallError(call)


def outline(folder: Path, max_model_len: int | None) -> Outline:
    """Read a folder's config.json. ConfigError for what is known to be impossible without weights."""
    cls, config, text_config, max_model_len = read_candidate(folder, max_model_len)
    path = folder / "config.json"
    with quietly(path), torch.device("meta"):
        model = cls(config)
        call = _first_call(model)
    if call is None:
        raise ConfigError(f"{path} names {cls.__name__}, which has no attention of transformers'")
    return Outline(
        architecture=cls.__name__,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_layers=text_config.num_hidden_layers,
        num_heads=call.query.shape[1],
        num_kv_heads=call.key.shape[1],
        head_dim=max(call.key.shape[3], call.value.shape[3]),
        hidden_size=text_config.hidden_size,
        inner_size=_inner_size(model, text_config),
        vocab_size=text_config.vocab_size,
        max_model_len=max_model_len,
    )


def _first_call(model: Any) -> AttentionCall | None:
    """What the first layer asks its attention for; shapes without values."""
    model.set_attn_implementation(WATCHED)
    tokens = torch.ones(1, NUM_PROBE_TOKENS, dtype=torch.int64)
    try:
        with torch.inference_mode(), answering(_FirstCalls()):
            # Without a mask, positions would be looked at, which have no values here.
            model(input_ids=tokens, attention_mask=tokens, use_cache=False)
    except _FirstCallError as first:
        return first.call
    return None


def _inner_size(model: Any, config: Any) -> int:
    """The widest side of a layer's matrices, those of the experts times those that a token goes to."""
    num_experts: int = getattr(config, "num_experts_per_tok", None) or 1
    widest: int = config.hidden_size
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            if weight.ndim == 2 and config.vocab_size not in weight.shape:
                widest = max(widest, *weight.shape)
            elif weight.ndim == 3:
                # All experts in one: [experts, out, in].
                widest = max(widest, num_experts * max(weight.shape[1:]))
    return widest


def read_config(folder: Path) -> transformers.PreTrainedConfig:
    """config.json as transformers understands it; ConfigError when it knows no such model."""
    with quietly(folder / "config.json"):
        config: transformers.PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    for part in (config, config.get_text_config(decoder=True)):
        # Weights come to transformers as what they stand for.
        for key in _QUANTISED_KEYS & vars(part).keys():
            delattr(part, key)
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
    folder: Path,
    cls: type[Any],
    config: transformers.PreTrainedConfig,
    dtype: torch.dtype,
    tensors: Mapping[str, Any] | None = None,
) -> Any:
    """The model with its weights in a type. ConfigError unless every weight is there and fits.

    `tensors` are those of a dense checkpoint, in the place of the folder's: each gives itself for `[...]`.
    """
    with quietly(folder):
        model, info = cls.from_pretrained(
            folder if tensors is None else None,
            state_dict=tensors,
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
