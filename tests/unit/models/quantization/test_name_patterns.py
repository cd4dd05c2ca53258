"""Regular expressions of settings mean what they mean to Python, and never take long."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from pagemesh.models.quantization.gptq import Gptq
from pagemesh.models.quantization.name_patterns import check_pattern, fits
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
    "",
    ".*lm_head",
    r".*mlp\.gate$",
    r"model\.layers\.\d+\.mlp\.experts\.[0-9]+\.(gate|up|down)_proj",
    r".*\.(?:1[5-9]|2\d)\..*",
    r"^(?!.*experts).*$",
    r"^(?!.*(?:self_attn\.(?:q_proj|k_proj)|vision_tower\..*)$).*$",
    r".*(?<!shared_)experts.*",
    r".*(?<=layers\.)1\d?\.",
    r"(?:model\.)?layers?",
    r"\bmodel\b.*\Bate\b",
    r"[^.]*\.[^aeiou]*",
    r"(?:[a-z_]+\.){3,4}\w*?\Z",
    r".*\W\S+\D$",
    r"(?:){5}x|\s?lm",
    r"((?:a?b*)*.*|(?=q))+(?:\.|$)*?",
    r"(?!)|m",
)


def python(text: str, name: str) -> bool:
    return re.match(text, name) is not None


@pytest.mark.parametrize("text", PATTERNS)
def test_patterns_fit_what_they_fit_in_python(text: str) -> None:
    check_pattern(text, WHERE)
    assert [fits(text, name, WHERE) for name in NAMES] == [python(text, name) for name in NAMES]


def drawn_pattern(draw: random.Random, depth: int = 3) -> str:
    parts = []
    for _ in range(draw.randrange(1, 4)):
        if depth and draw.random() < 0.5:
            inner = drawn_pattern(draw, depth - 1)
            opening = draw.choice(["(", "(?:", "(?:", "(?=", "(?!"])
            part = f"{opening}{inner})"
        else:
            part = draw.choice(["a", "b", ".", "[ab]", "[^a]", "$", "^", r"\b", r"\d", "(?<=a)"])
        if part[-1] not in "$^b" or part == "b":
            part += draw.choice(["", "", "", "?", "*", "{2}", "{1,2}", "+?"])
        parts.append(part)
    return "|".join(["".join(parts), *draw.choices(["", "a", "b."], k=draw.randrange(2))])


def test_drawn_patterns_fit_what_they_fit_in_python() -> None:
    draw = random.Random(5)
    num_fitting = num_compared = 0
    for _ in range(3000):
        text = drawn_pattern(draw)
        name = "".join(draw.choices("ab1", k=draw.randrange(6)))
        check_pattern(text, WHERE)
        expected = python(text, name)
        assert fits(text, name, WHERE) == expected, (text, name)
        num_compared += 1
        num_fitting += expected
    assert 0.2 < num_fitting / num_compared < 0.9


HOSTILE = (
    r"([a-z._0-9]+)+Z",
    r"(.|l|a|y|e)*Z",
    ".*" * 20 + "Z",
    r"(?:(?:(?:(?:.*m)*o)*d)*e)*Z",
    r"(?:.?){1000000000}Z",
    r"(?:.(?:.(?:.(?:.(?:.*Z)?)*Z?)*Z?)*Z?)*Z",
    r"(?=(?:.(?=(?:.(?=(?:.(?=.*Z))*))*))*Z)",
    "(?:" * 20 + ".*" + ")*" * 20 + "Z",
)
NAME = "model.layers.20.mlp.experts.7.down_proj"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_pattern_takes_long(text: str) -> None:
    begun = time.process_time()
    try:
        check_pattern(text, WHERE)
        assert not fits(text, NAME, WHERE)
    except ConfigError as error:
        assert error.message == (
            f"{WHERE} has the regular expression {text!r}, which takes too long to match with {NAME}"
        )
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(", "missing ), unterminated subpattern at position 0"),
        ("a{99999999999}", "the repetition number is too large"),
        (r"(a)\1", "groupref is not supported"),
        ("(a)?(?(1)b|c)", "groupref_exists is not supported"),
        ("(?>a)", "atomic_group is not supported"),
        ("a++", "possessive_repeat is not supported"),
        ("(?i)a", "flags are not supported"),
        ("(?i:a)", "flags are not supported"),
        ("(?:" * 31 + "a*" + ")*" * 31, "it is nested too deep"),
        ("(" * 1500 + ")" * 1500, "it is nested too deep"),
        ("a" * 4001, "it has 4001 characters, but 4000 are the most"),
    ],
)
def test_what_cannot_be_matched_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_pattern(text, WHERE)
    assert caught.value.message == (
        f"{WHERE} must have regular expressions, but {text!r:.200} is none that can be matched: {told}"
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
