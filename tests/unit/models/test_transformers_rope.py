"""Frequencies of every kind of RoPE are those of transformers for a context of the length served."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.rope import fix_rope, frequencies
from pagemesh.models.rope_config import RopeFacts, read_rope
from tests.support.late_imports import transformers

HEAD_DIM, MAX_POSITION = 20, 512
FACTORS = {
    "short_factor": [1 + i / 10 for i in range(10)],
    "long_factor": [2 + i / 3 for i in range(10)],
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("settings", "max_model_len"),
    [
        ({"rope_type": "linear", "factor": 3.0}, 512),
        ({"rope_type": "dynamic", "factor": 3.0}, 512),
        ({"rope_type": "dynamic", "factor": 3.0}, 700),
        ({"rope_type": "dynamic", "factor": 3.0}, 1536),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            512,
        ),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
                "attention_factor": 1.5,
            },
            512,
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "mscale": 0.7,
                "mscale_all_dim": 1.2,
            },
            512,
        ),
        ({"rope_type": "longrope", **FACTORS}, 128),
        ({"rope_type": "longrope", **FACTORS}, 512),
        ({"rope_type": "longrope", "factor": 9.0, **FACTORS}, 512),
        ({"rope_type": "longrope", "attention_factor": 1.3, **FACTORS}, 512),
    ],
)
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_frequencies_are_those_of_transformers(
    settings: dict[str, Any], max_model_len: int, theta: float
) -> None:
    rope = {"rope_theta": theta, **settings}
    values: dict[str, Any] = {"max_position_embeddings": MAX_POSITION, "rope_parameters": rope}
    ours = fix_rope(
        read_rope(ConfigJson(values, "config.json"), RopeFacts(HEAD_DIM, MAX_POSITION, 1.0)),
        max_model_len,
    )
    reference: Any = transformers.LlamaConfig(
        hidden_size=2 * HEAD_DIM, num_attention_heads=2, **deepcopy(values)
    )
    expected, attention_factor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[
        settings["rope_type"]
    ](reference, torch.device("cpu"), seq_len=max_model_len)
    torch.testing.assert_close(frequencies(ours), expected, rtol=1e-5, atol=0)
    assert ours.attention_factor == pytest.approx(attention_factor)
