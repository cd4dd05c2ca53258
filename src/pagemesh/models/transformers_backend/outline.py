"""What a model that transformers runs would take, from its config.json alone: it is built without memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend.attention import WATCHED, AttentionCall, answering
from pagemesh.models.transformers_backend.candidate import read_candidate
from pagemesh.models.transformers_backend.probe import NUM_PROBE_TOKENS
from pagemesh.models.transformers_backend.reading import quietly


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
