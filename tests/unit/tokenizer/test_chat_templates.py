"""Which chat templates a model folder has, in every form in which transformers writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pagemesh.errors import ConfigError, UnsupportedError
from pagemesh.tokenizer.chat_templates import ChatTemplates, load_chat_templates, read_chat_template
from tests.support.late_imports import transformers

HI = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
]


def listed(**named: str) -> str:
    given = [{"name": name, "template": text} for name, text in named.items()]
    return json.dumps({"chat_template": given})


CONFIG = "tokenizer_config.json"
FORMS: dict[str, dict[str, str]] = {
    "one in a file": {"chat_template.jinja": "a"},
    "one in the config": {CONFIG: json.dumps({"chat_template": "a"})},
    "list in the config": {CONFIG: listed(default="a", tool_use="b", rag="c")},
    "files": {"chat_template.jinja": "a", "additional_chat_templates/tool_use.jinja": "b"},
    "files before the config": {
        "chat_template.jinja": "a",
        CONFIG: listed(default="d", tool_use="e"),
    },
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_templates_are_chosen_as_in_transformers(
    demo_model: Path, tmp_path: Path, form: str
) -> None:
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(demo_model / name, tmp_path)
    write(tmp_path, {CONFIG: "{}", **FORMS[form]})
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    templates = load_chat_templates(tmp_path, {})
    for tools in (None, TOOLS):
        expected = reference.apply_chat_template(HI, tools=tools, tokenize=False)
        assert templates.choose(has_tools=tools is not None).render(HI) == expected


@pytest.mark.parametrize(
    ("files", "plain", "documents"),
    [
        (FORMS["list in the config"], "a", "c"),
        ({"additional_chat_templates/rag.jinja": "r", "chat_template.jinja": "a"}, "a", "r"),
        # Of older processors; the tokenizer's own are better.
        ({"chat_template.json": json.dumps({"chat_template": "p"})}, "p", "p"),
        ({"chat_template.json": listed(default="p", rag="q")}, "p", "q"),
        ({"chat_template.json": listed(default="p"), **FORMS["one in the config"]}, "a", "a"),
    ],
    ids=range(5),
)
def test_documents_have_their_template_too(
    tmp_path: Path, files: dict[str, str], plain: str, documents: str
) -> None:
    templates = load_chat_templates(write(tmp_path, files), {})
    assert templates.choose().render(HI) == plain
    assert templates.choose(has_documents=True).render(HI) == documents


def test_a_conversation_without_a_template_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no chat template: use completions"):
        ChatTemplates({}).choose()


def test_templates_for_tools_alone_say_so(tmp_path: Path) -> None:
    write(tmp_path, {CONFIG: listed(tool_use="b")})
    templates = load_chat_templates(tmp_path, {})
    assert templates.choose(has_tools=True).render(HI) == "b"
    with pytest.raises(UnsupportedError, match="for tool_use alone") as error:
        templates.choose(has_documents=True)
    assert error.value.param == "messages"


@pytest.mark.parametrize("given", [5, [5], [{"name": "default"}], [{"template": "a"}], {"a": 1}])
def test_what_is_no_template_is_named(tmp_path: Path, given: Any) -> None:
    write(tmp_path, {CONFIG: json.dumps({"chat_template": given})})
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: chat_template must be"):
        load_chat_templates(tmp_path, {})


def test_a_broken_template_is_named_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"additional_chat_templates/rag.jinja": "{% for %}"})
    with pytest.raises(ConfigError, match=r"rag\.jinja: .*not valid Jinja"):
        load_chat_templates(tmp_path, {})
    with pytest.raises(ConfigError, match=r"x\.jinja cannot be read"):
        read_chat_template(tmp_path / "x.jinja", {})


def test_templates_that_are_too_long_together_are_refused(tmp_path: Path) -> None:
    half = "a" * 2**16
    write(tmp_path, {CONFIG: listed(default=half, tool_use=half)})
    assert load_chat_templates(tmp_path, {}).choose().render(HI) == half
    write(tmp_path, {CONFIG: listed(default=half, tool_use=half, rag="a")})
    with pytest.raises(ConfigError) as caught:
        load_chat_templates(tmp_path, {})
    assert caught.value.message == (
        f"{tmp_path} has chat templates of 131073 characters, but 131072 are the most"
    )
    write(tmp_path, {"one.jinja": half + half + "a"})
    with pytest.raises(
        ConfigError, match=r"one\.jinja: the chat template has 131073 characters, but 131072 are"
    ):
        read_chat_template(tmp_path / "one.jinja", {})
