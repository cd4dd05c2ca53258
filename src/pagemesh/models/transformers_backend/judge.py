"""Finds out whether a model of transformers can be served over paged KV, and what its layers need.

It watches one forward pass, to learn what the model's attention needs and whether it can be had.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.interface import ModelShape
from pagemesh.models.transformers_backend.attention import (
    WATCHED,
    AttentionCall,
    UnservableError,
    answering,
    sliding_window_of,
)
from pagemesh.models.transformers_backend.model import TransformersModel
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


NUM_PROBE_TOKENS: Final = 3

# Options that a layer may pass, and that say nothing about the attention of a decoder that serves.
_NEUTRAL: Final = frozenset(
    (
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "position_ids",
        "scaling",
        "sliding_window",
        "softcap",
        "s_aux",
        "use_cache",
    )
)


class HeadShape(NamedTuple):
    """Shape of a layer's heads; equal for all layers of a model that can be served."""

    num_heads: int
    num_kv_heads: int
    key_dim: int  # of queries too
    value_dim: int


class Watcher:
    """`WatchedCalls` that answers with zeros and notes what it is asked.

    Raises UnservableError for what paged KV does not have.
    """

    def __init__(self, max_model_len: int, dtype: torch.dtype) -> None:
        self.layers: list[LayerAttention] = []
        """Of every call, in order."""
        self.shapes: list[HeadShape] = []
        self._max_model_len = max_model_len
        self._dtype = dtype
        self._masks: list[tuple[torch.Tensor, int | None]] = []

    def make_mask(self, **request: Any) -> torch.Tensor:
        """Note the window; the mask itself is a causal one."""
        window = sliding_window_of(
            request["mask_function"], request.get("local_size"), self._max_model_len
        )
        mask = _causal(request["q_length"])
        self._masks.append((mask, window))
        return mask

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Note the layer."""
        self.shapes.append(self._shape(call))
        _check_options(call)
        options = call.options
        scale, sinks = options.get("scaling"), options.get("s_aux")
        self.layers.append(
            LayerAttention(
                scale=call.query.shape[-1] ** -0.5 if scale is None else float(scale),
                sliding_window=self._window(call),
                soft_cap=options.get("softcap"),
                sinks=None if sinks is None else sinks.detach(),
            )
        )
        shape = self.shapes[0]
        return call.query.new_zeros(1, NUM_PROBE_TOKENS, shape.num_heads, shape.value_dim)

    def _shape(self, call: AttentionCall) -> HeadShape:
        query, key, value = call.query, call.key, call.value
        for name, tensor in (("queries", query), ("keys", key), ("values", value)):
            if tensor.shape[0] != 1 or tensor.shape[2] != NUM_PROBE_TOKENS:
                raise UnservableError(
                    f"has {name} of other tokens than its input's in its attention"
                )
            if tensor.dtype != self._dtype:
                raise UnservableError(f"has {name} of type {tensor.dtype} instead of {self._dtype}")
        shape = HeadShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        if shape.num_heads % shape.num_kv_heads != 0 or value.shape[1] != shape.num_kv_heads:
            raise UnservableError(
                f"has {shape.num_heads} query heads for {key.shape[1]} of keys and {value.shape[1]} "
                "of values"
            )
        if self.shapes and shape != self.shapes[0]:
            raise UnservableError(
                f"has layers of different heads: {_in_words(self.shapes[0])} and {_in_words(shape)}"
            )
        return shape

    def _window(self, call: AttentionCall) -> int | None:
        for mask, window in self._masks:
            if mask is call.mask:
                return window
        if call.mask is not None:
            expected = _causal(NUM_PROBE_TOKENS)
            shown = call.mask if call.mask.dtype == torch.bool else call.mask == 0
            if any(window is not None for _, window in self._masks) or not torch.equal(
                shown, expected.expand_as(shown)
            ):
                raise UnservableError("attends by a mask of its own")
            return None
        window = call.options.get("sliding_window")
        return window if window is not None and window < self._max_model_len else None


def _check_options(call: AttentionCall) -> None:
    options = call.options
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(call.module, "is_causal", True)
    if not is_causal:
        raise UnservableError("has attention that also looks ahead")
    for name, value in options.items():
        if name not in _NEUTRAL and isinstance(value, torch.Tensor):
            raise UnservableError(f"has attention with {name}")


def _causal(num_tokens: int) -> torch.Tensor:
    return torch.ones(1, 1, num_tokens, num_tokens, dtype=torch.bool).tril_()


def _in_words(shape: HeadShape) -> str:
    values = "" if shape.value_dim == shape.key_dim else f" ({shape.value_dim} of values)"
    return f"{shape.num_heads} / {shape.num_kv_heads} of {shape.key_dim}{values}"
