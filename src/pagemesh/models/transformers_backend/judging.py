"""Finds out whether a model of transformers can be served over paged KV, and what its layers need."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.interface import ModelShape
from pagemesh.models.transformers_backend.attention import WATCHED, UnservableError, answering
from pagemesh.models.transformers_backend.causal_model import TransformersModel
from pagemesh.models.transformers_backend.probe import NUM_PROBE_TOKENS, Watcher
from pagemesh.models.transformers_backend.self_check import check_logits, own_logits

# Their frequencies follow the longest position in a batch, so that tokens would depend on neighbours.
_SHIFTING_ROPES = ("dynamic", "longrope")


class JudgedModel(NamedTuple):
    """A model that can be served."""

    model: TransformersModel
    shape: ModelShape
    layers: Sequence[LayerAttention]
    own_logits: torch.Tensor  # what transformers alone gives for the tokens of the check


def check_class(cls: type[Any] | None, config: Any, where: str) -> None:
    """Raise ConfigError for what is known to be impossible before any weight is read."""
    if cls is None:
        raise ConfigError(f"{where}: transformers has no causal language model of this kind")
    name = cls.__name__
    named = (config.architectures or [name])[0]
    if named != name:
        raise ConfigError(
            f"{where} names the architecture {named!r}, but as a causal language model transformers "
            f"would run it as {name}"
        )
    if config.is_encoder_decoder:
        raise _refusal(where, name, "is an encoder with a decoder")
    if cls._is_stateful:
        raise _refusal(where, name, "keeps other state than keys and values")
    if not cls._can_set_attn_implementation():
        raise _refusal(where, name, "does not use transformers' attention interface")
    if "logits_to_keep" not in inspect.signature(cls.forward).parameters:
        raise _refusal(where, name, "cannot leave out the logits of some tokens")


def check_rope(config: Any, max_model_len: int, where: str) -> None:
    """Raise ConfigError for position embeddings whose frequencies depend on the rest of a batch."""
    for rope in _ropes(config):
        kind = rope.get("rope_type")
        limit = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if kind in _SHIFTING_ROPES and max_model_len > limit:
            raise ConfigError(
                f"{where} has rope_type = {kind!r}, whose frequencies change for all of a batch when "
                f"one sequence exceeds {limit} tokens: set --max-model-len to at most {limit}"
            )


def judge(model: Any, max_model_len: int, dtype: torch.dtype, where: str) -> JudgedModel:
    """Watch the model once and compare it with itself; ConfigError naming what cannot be had."""
    name = type(model).__name__
    try:
        return _judge(model, max_model_len, dtype)
    except UnservableError as error:
        raise _refusal(where, name, str(error)) from error
    except Exception as error:
        # The one boundary to a model's own code, which may raise anything when it is not fed as usual.
        first_line = next(iter(str(error).splitlines()), "no details")
        raise _refusal(where, name, f"fails: {type(error).__name__}: {first_line}") from error


def _judge(model: Any, max_model_len: int, dtype: torch.dtype) -> JudgedModel:
    watcher = Watcher(max_model_len, dtype)
    model.set_attn_implementation(WATCHED)
    tokens = torch.arange(NUM_PROBE_TOKENS).unsqueeze(0)
    with torch.inference_mode(), answering(watcher):
        output = model(input_ids=tokens, position_ids=tokens, use_cache=False)
    if not watcher.shapes:
        raise UnservableError("has no layer that uses transformers' attention interface")
    heads = watcher.shapes[0]
    head_dim = max(heads.key_dim, heads.value_dim)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    shape = ModelShape(
        num_layers=len(watcher.layers),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=head_dim,
        vocab_size=output.logits.shape[-1],
        num_layer_weights=num_weights // len(watcher.layers),
    )
    served = TransformersModel(model, head_dim)
    with torch.inference_mode():
        expected = own_logits(model, shape.vocab_size)
        check_logits(served, expected, shape, watcher.layers, dtype, torch.device("cpu"))
    return JudgedModel(served, shape, watcher.layers, expected)


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """The settings of every RoPE that a config has; some have one for each type of layers."""
    ropes = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in ropes:
        yield ropes
    else:
        yield from (rope for rope in ropes.values() if isinstance(rope, dict))


def _refusal(where: str, name: str, why: str) -> ConfigError:
    return ConfigError(f"{where} names {name}, which {why}; it cannot be served over paged KV")
