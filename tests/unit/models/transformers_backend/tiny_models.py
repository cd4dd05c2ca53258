"""Models of transformers of a few thousand random weights."""

from __future__ import annotations

from typing import Any

import torch

from pagemesh.models.transformers_backend.read import model_class
from tests.support.late_imports import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make_config(name: str, **settings: Any) -> Any:
    """A configuration class of transformers, made small."""
    config = getattr(transformers, name)(**(SMALL | settings))
    cls = model_class(config)
    assert cls is not None
    config.architectures = [cls.__name__]
    return config


def make_model(name: str, **settings: Any) -> Any:
    """The causal language model of such a configuration; every weight matters to its logits."""
    torch.manual_seed(3)
    config = make_config(name, **settings)
    cls = model_class(config)
    assert cls is not None
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model
