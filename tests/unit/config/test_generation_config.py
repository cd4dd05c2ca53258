"""Settings of sampling's defaults, and of the variables of chat templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.cli.settings import UpConfig
from pagemesh.config import ChatConfig, GenerationConfig, RouterConfig
from pagemesh.errors import ConfigError


def test_overrides_are_a_json_object_with_known_keys() -> None:
    values = {"temperature": 0.5, "max_new_tokens": 9, "do_sample": False, "top_k": None}
    config = GenerationConfig(override_generation_config=json.dumps(values))
    assert config.overrides == values
    assert GenerationConfig().overrides == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{temperature: 1}",
            "--override-generation-config is '{temperature: 1}', which is not JSON",
        ),
        ("[1]", r"--override-generation-config is '\[1\]', but must be a JSON object"),
        (
            '{"temprature": 1}',
            "--override-generation-config has 'temprature', but may have only temp",
        ),
        ('{"eos_token_id": 1}', "--override-generation-config has 'eos_token_id'"),
        ('{"temperature": 3}', r"--override-generation-config: temperature is 3, but .* \[0, 2\]"),
        ('{"top_k": true}', "--override-generation-config: top_k is True"),
        ('{"do_sample": 1}', "--override-generation-config: do_sample is 1, but must be true or"),
        ('{"max_new_tokens": 0}', "--override-generation-config: max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_overridden_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GenerationConfig(override_generation_config=text)


@pytest.mark.parametrize("kind", [RouterConfig, UpConfig])
def test_a_folder_of_defaults_is_for_one_model(kind: Any) -> None:
    needed = {"kvstore": "127.0.0.1:1"} if kind is RouterConfig else {}
    for name in ("auto", "vllm"):
        kind(model=("a", "b"), generation=GenerationConfig(name), **needed)
    with pytest.raises(ConfigError, match="--generation-config is '/f', but must be unset for 2"):
        kind(model=("a", "b"), generation=GenerationConfig("/f"), **needed)
    with pytest.raises(ConfigError, match="--generation-config is '', but must be auto, vllm or a"):
        GenerationConfig("")


def test_variables_of_templates_are_a_json_object() -> None:
    config = ChatConfig(default_chat_template_kwargs='{"enable_thinking": false}')
    assert config.read_template_defaults() == {"enable_thinking": False}
    for text in ("null", "{"):
        with pytest.raises(ConfigError, match="--default-chat-template-kwargs is"):
            ChatConfig(default_chat_template_kwargs=text)
