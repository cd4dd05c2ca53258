"""Regular expressions of settings mean what they mean to Python, and never take long."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from pagemesh.models.quantization.gptq import Gptq
from pagemesh.models.quantization.name_patterns import fits
from tests.support.quantised_checkpoints import FORMATS

WHERE = "config.json: ignore"
NAMES = (
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.19.mlp.gate_proj",
    "model.layers.20.mlp.experts.7.down_proj",
    "model.layers.3.mlp.shared_experts.up_proj",
    "model.layers.11.mlp.gate",
    "model.vision_tower.blocks.2.fc1",
    "",
)
PATTERNS = (
    ".*lm_head",
    r".*mlp\.gate$",
    r"model\.layers\.\d+\.mlp\.experts\.[0-9]+\.(gate|up|down)_proj",
    r".*\.(?:1[5-9]|2\d)\..*",
    r"^(?!.*experts).*$",
    r"^(?!.*(?:self_attn\.(?:q_proj|k_proj)|vision_tower\..*)$).*$",
    r".*(?<!shared_)experts.*",
    r"(?:model\.)?layers?",
    r"[^.]*\.[^aeiou]*",
)


@pytest.mark.parametrize("text", PATTERNS)
def test_patterns_fit_what_they_fit_in_python(text: str) -> None:
    fitting = [name for name in NAMES if fits(text, [name], WHERE)]
    assert fitting == [name for name in NAMES if re.match(text, name)]
    assert fits(text, NAMES, WHERE) == bool(fitting)


HOSTILE = (
    r"([a-z._0-9]+)+Z",
    r"(.|l|a|y|e)*Z",
    ".*" * 20 + "Z",
    r"(?:(?:(?:(?:.*m)*o)*d)*e)*Z",
    r"(?:(?:(?:.?){10}){10}){10}Z",
    r"(?:.(?:.(?:.(?:.(?:.*Z)?)*Z?)*Z?)*Z?)*Z",
    r"(?=(?:.(?=(?:.(?=(?:.(?=.*Z))*))*))*Z)",
    "(?:" * 20 + ".*" + ")*" * 20 + "Z",
)
NAME = "model.layers.20.mlp.experts.7.down_proj"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_pattern_takes_long(text: str) -> None:
    begun = time.process_time()
    try:
        assert not fits(text, [NAME], WHERE)
    except ConfigError as error:
        assert error.message == (
            f"{WHERE} has the regular expression {text!r}, which takes too long to match with {NAME}"
        )
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(", "missing ) at position 1"),
        ("a" * 4001, "it has 4001 characters, but 4000 are the most"),
        ("(?:.?){1000000000}", "it repeats something more than 1000 times"),
        ("(?:.?){,1001}", "it repeats something more than 1000 times"),
        ("(?:.?){1001,}", "it repeats something more than 1000 times"),
        ("(?:(?:(?:.?){9,11}){1,10}?){10}", "it repeats something more than 1000 times"),
        ("(" * 1500 + ")" * 1500, "it is nested too deep"),
    ],
)
def test_what_is_no_expression_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fits(text, [], WHERE)
    assert caught.value.message == (
        f"{WHERE} must have regular expressions, but {text!r:.200} is none that is taken: {told}"
    )


def test_formats_match_in_bounded_time() -> None:
    begun = time.process_time()
    module, hostile = "model.layers.20.mlp.down_proj", "([a-z._0-9]+)+Z"
    settings: dict[str, Any] = {**FORMATS["W4A16"].config, "ignore": [f"re:{hostile}"]}
    packed = CompressedTensors.read(ConfigJson(settings, "config.json"))
    assert packed.find(f"{module}.weight", (32, 32), {}) is not None
    settings = {**FORMATS["GPTQ"].config, "dynamic": {f"+:{hostile}": {"bits": 8}}}
    found = Gptq.read(ConfigJson(settings, "config.json")).find(f"{module}.weight", (32, 32), {})
    assert found is not None and found.parts["codes"].shape == (4, 32)
    assert time.process_time() - begun < 1.0
