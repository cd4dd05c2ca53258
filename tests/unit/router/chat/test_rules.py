"""Which parsers are taken, and whose chat templates."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pagemesh.config import ChatConfig
from pagemesh.errors import ConfigError, InvalidRequestError, UnsupportedError
from pagemesh.router.chat.rules import ChatRules, find_reasoning_parser, find_tool_parser
from pagemesh.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ x }}", None),
        ("<tool_call>\\n{{ c | tojson }}", "hermes"),
        ("<tool_call>\\n<function={{ c }}>", None),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json",
            "deepseek_v3",
        ),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "deepseek_v31"),
    ],
)
def test_the_tool_parser_is_found_in_the_template(template: str, name: str | None) -> None:
    assert find_tool_parser(template) == name


def test_the_reasoning_parser_is_found_in_the_template() -> None:
    assert find_reasoning_parser("{{ c.split('</think>')[-1] }}") == "qwen3"
    assert find_reasoning_parser("I think") is None


def test_the_demo_model_has_both(tokenizer: Tokenizer) -> None:
    rules = ChatRules.of(ChatConfig(), tokenizer)
    assert (rules.tool_parser, rules.reasoning_parser) == ("hermes", "qwen3")
    assert rules.require_tool_parser(is_auto=True) == "hermes"


def test_settings_win_and_may_be_none(tokenizer: Tokenizer) -> None:
    config = ChatConfig(tool_call_parser="mistral", reasoning_parser="none")
    rules = ChatRules.of(config, tokenizer)
    assert (rules.tool_parser, rules.reasoning_parser) == ("mistral", None)
    without = ChatRules.of(ChatConfig(tool_call_parser="none"), tokenizer)
    with pytest.raises(UnsupportedError, match="--tool-call-parser") as error:
        without.require_tool_parser(is_auto=True)
    assert error.value.param == "tools"
    # A call that must come is written as plain JSON, which needs no habit of the model's.
    assert without.require_tool_parser(is_auto=False) == "llama3_json"


def test_a_parser_that_nobody_knows_is_refused_with_those_that_are_known(
    tokenizer: Tokenizer,
) -> None:
    with pytest.raises(ConfigError, match=r'tool-call-parser is "x", but .* hermes, '):
        ChatRules.of(ChatConfig(tool_call_parser="x"), tokenizer)
    with pytest.raises(ConfigError, match=r'reasoning-parser is "x", but .* qwen3'):
        ChatRules.of(ChatConfig(reasoning_parser="x"), tokenizer)


def test_the_operator_may_want_requests_to_say_what_is_called(tokenizer: Tokenizer) -> None:
    rules = ChatRules.of(ChatConfig(enable_auto_tool_choice=False), tokenizer)
    assert rules.require_tool_parser(is_auto=False) == "hermes"
    with pytest.raises(UnsupportedError, match="--enable-auto-tool-choice"):
        rules.require_tool_parser(is_auto=True)


def test_the_operators_template_is_used_and_read_for_parsers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("[TOOL_CALLS]{{ messages[0].content }}{{ eos_token }}")
    rules = ChatRules.of(ChatConfig(chat_template=str(path)), tokenizer)
    template = rules.templates.choose(has_tools=True)
    assert template.render(HI) == "[TOOL_CALLS]hi<|im_end|>"
    # Tried already, and not when the first conversation comes.
    assert "shape" in vars(template)
    assert (rules.tool_parser, rules.reasoning_parser) == ("mistral", None)
    with pytest.raises(ConfigError, match=re.escape(f"--chat-template {tmp_path} cannot be read")):
        ChatRules.of(ChatConfig(chat_template=str(tmp_path)), tokenizer)


def test_parsers_are_found_in_whichever_template_shows_them(
    demo_model: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(demo_model / name, tmp_path)
    named = {"default": "{{ x }}", "tool_use": "<tool_call>", "rag": "</think>"}
    listed = [{"name": name, "template": text} for name, text in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    rules = ChatRules.of(ChatConfig(), Tokenizer(tmp_path))
    assert (rules.tool_parser, rules.reasoning_parser) == ("hermes", "qwen3")


def test_the_operators_template_may_be_the_setting_itself(tokenizer: Tokenizer) -> None:
    for text in ("{{ messages[0].content }}!", "a\nb", "{{ x }}" * 1000):
        rules = ChatRules.of(ChatConfig(chat_template=text), tokenizer)
        assert rules.templates.choose().source == text
    with pytest.raises(ConfigError, match=r"--chat-template nowhere\.jinja cannot be read"):
        ChatRules.of(ChatConfig(chat_template="nowhere.jinja"), tokenizer)


def test_requests_bring_templates_only_where_they_are_trusted(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="--trust-request-chat-template") as error:
        ChatRules.of(ChatConfig(), tokenizer).require_template_accepted()
    assert error.value.param == "chat_template"
    ChatRules.of(
        ChatConfig(trust_request_chat_template=True), tokenizer
    ).require_template_accepted()


def test_defaults_of_variables_are_no_fields_of_requests(tokenizer: Tokenizer) -> None:
    config = ChatConfig(default_chat_template_kwargs='{"x": 1}')
    assert ChatRules.of(config, tokenizer).template_defaults == {"x": 1}
    with pytest.raises(
        ConfigError, match="--default-chat-template-kwargs has 'tools', which is not"
    ):
        ChatRules.of(ChatConfig(default_chat_template_kwargs='{"tools": []}'), tokenizer)
