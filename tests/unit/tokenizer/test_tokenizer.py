""""""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from pagemesh.errors import ConfigError, InvalidRequestError, UnsupportedError
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.chat_template import ChatTemplate, RenderOptions
from pagemesh.tokenizer.tokenizer import NUM_INLINE_CHARS, encode_bad_words
from tests.support.late_imports import transformers

TEXTS = [
    "Hello, world!",
    "  two  spaces\tand\na line",
    "12 + 345 = 357",
    "naïve café — 東京 🚀 \u0301",
    "<|im_start|>user\nspecial<|im_end|>",
    "a" * 3,
]
LONG_TEXTS = ["What is 3 + 9? " * 3000, "a" * 20_000, " " * 20_000, "東京" * 5000]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "  And 3 + 3?\n"},
    ],
]
# What templates in the wild rely on: loop controls, tojson, generation blocks, special tokens,
# trimmed blocks and undefined variables.
RICH_TEMPLATE = """{{ bos_token }}
{%- if tools %}never{% endif %}
{% for message in messages %}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {% generation %}
{{ message | tojson }}{% endgeneration %}
    {% set ns = namespace(n=0) %}{% set ns.n = loop.index %}[{{ ns.n }}]{{ message.name }}
{% endfor %}
{% if add_generation_prompt %}>{{ eos_token }}{% endif %}
{{ strftime_now("%%") }}
"""


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.fixture
def folder(demo_model: Path, tmp_path: Path) -> Path:
    """A copy of the demo model's tokenizer that a test may change."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copy(demo_model / name, tmp_path / name)
    return tmp_path


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("text", TEXTS)
async def test_ids_equal_those_of_transformers(
    tokenizer: Tokenizer, demo_model: Path, text: str
) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(demo_model)
    for add in (True, False):
        expected = reference.encode(text, add_special_tokens=add)
        assert await tokenizer.encode(text, add_special_tokens=add) == expected
    ids = reference.encode(text)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("messages", CHATS)
async def test_chats_equal_those_of_transformers(
    tokenizer: Tokenizer, demo_model: Path, messages: list[dict[str, Any]]
) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(demo_model)
    expected = reference.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert await tokenizer.encode_chat(messages) == expected


async def test_a_beginning_of_sequence_token_comes_from_the_post_processor(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    library.save(str(folder / "tokenizer.json"))
    ids = await Tokenizer(folder).encode("Hi", add_special_tokens=True)
    assert ids == transformers.AutoTokenizer.from_pretrained(folder).encode("Hi")
    assert ids[0] == 1
    assert (await Tokenizer(folder).encode("Hi", add_special_tokens=False))[0] != 1


@pytest.mark.parametrize("place", ["file", "config", "named"])
def test_templates_render_as_in_transformers(folder: Path, place: str) -> None:
    change_json(
        folder / "tokenizer_config.json",
        bos_token={"__type": "AddedToken", "content": "<|im_start|>"},
    )
    if place == "file":
        (folder / "chat_template.jinja").write_text(RICH_TEMPLATE)
    else:
        (folder / "chat_template.jinja").unlink()
        named = [{"name": "default", "template": RICH_TEMPLATE}]
        template = RICH_TEMPLATE if place == "config" else named
        change_json(folder / "tokenizer_config.json", chat_template=template)
    messages = [
        {"role": "user", "content": 'ü "quoted" <b>', "name": "ann"},
        {"role": "skip", "content": "x"},
        {"role": "assistant", "content": "y"},
    ]
    expected = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert Tokenizer(folder).chat_template.render(messages) == expected
    assert expected.startswith("<|im_start|>")
    assert "[3]" in expected


def test_what_a_template_raises_is_the_clients_fault(folder: Path) -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidRequestError, match="user first") as error:
        Tokenizer(folder).chat_template.render([{"role": "system", "content": ""}])
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}"],
    ids=["classes", "mutation", "error"],
)
def test_templates_are_kept_in_a_sandbox(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidRequestError):
        Tokenizer(folder).chat_template.render([{"role": "user", "content": "x"}])


def test_a_model_without_template_says_so(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedError, match="no chat template"):
        _ = Tokenizer(folder).chat_template


def test_a_broken_template_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ConfigError, match="not valid Jinja"):
        Tokenizer(folder)


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json holds list"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        Tokenizer(folder)


def test_the_vocabulary_is_the_models_own(folder: Path) -> None:
    assert Tokenizer(folder).vocab_size == 2048
    change_json(folder / "config.json", vocab_size=2560)
    assert Tokenizer(folder).vocab_size == 2560
    (folder / "config.json").unlink()
    assert Tokenizer(folder).vocab_size == 2048


async def test_long_texts_are_tokenized_whole(tokenizer: Tokenizer) -> None:
    text = "word " * NUM_INLINE_CHARS
    ids = await tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids) == text


async def test_other_threads_run_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    encoding = asyncio.create_task(
        tokenizer.encode("hello world " * 50_000, add_special_tokens=True)
    )
    num_turns = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert len(await encoding) > 50_000
    # A library that held the GIL would leave one or two.
    assert num_turns > 10


@pytest.mark.parametrize("text", LONG_TEXTS, ids=["words", "letters", "spaces", "kanji"])
async def test_only_texts_with_more_tokens_have_more_tokens(text: str, demo_model: Path) -> None:
    tokenizer = Tokenizer(demo_model)
    num_tokens = len(await tokenizer.encode(text, add_special_tokens=False))
    assert await tokenizer.has_more_than(num_tokens // 100, text)
    assert not await tokenizer.has_more_than(num_tokens, text)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    largest = max(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"].values())
    change_json(folder / "config.json", vocab_size=largest + 1)
    Tokenizer(folder)
    change_json(folder / "config.json", vocab_size=largest)
    with pytest.raises(ConfigError) as refusal:
        Tokenizer(folder)
    assert refusal.value.message == (
        f"{folder / 'tokenizer.json'} has the token id {largest}, but {folder / 'config.json'} has a "
        f"vocab_size of {largest}: they are not of the same model"
    )


def test_a_special_token_may_have_no_embedding(folder: Path) -> None:
    path = folder / "tokenizer.json"
    added = json.loads(path.read_text())["added_tokens"]
    change_json(path, added_tokens=[*added, added[0] | {"id": 2048, "content": "<image>"}])
    assert Tokenizer(folder).encode_batch(["<image>"], add_special_tokens=False) == [[2048]]
    added[0]["special"] = False
    change_json(path, added_tokens=[*added, added[0] | {"id": 2048, "content": "<image>"}])
    with pytest.raises(ConfigError, match="has the token id 2048, but"):
        Tokenizer(folder)


def test_only_tokens_beside_the_vocabulary_are_known_by_their_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.added_token_id("<|im_end|>") == 2
    assert tokenizer.added_token_id("the") is None
    assert tokenizer.added_token_id("<tool_call>") is None


CONVERSATION = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "The colour is "},
]


def test_an_answer_may_go_on_where_the_last_message_ends(demo_model: Path) -> None:
    """The text is cut behind the message, with its blanks; transformers does the same."""
    template = Tokenizer(demo_model).chat_template
    prompt = template.render(CONVERSATION, RenderOptions(continue_final_message=True))
    reference = transformers.AutoTokenizer.from_pretrained(demo_model)
    assert prompt == reference.apply_chat_template(
        CONVERSATION, tokenize=False, continue_final_message=True
    )
    assert prompt.endswith("<|im_start|>assistant\nThe colour is ")


def test_a_template_that_hides_the_last_message_cannot_go_on_with_it() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(InvalidRequestError, match="does not show the last message") as error:
        template.render(CONVERSATION, RenderOptions(continue_final_message=True))
    assert error.value.param == "continue_final_message"


def test_templates_see_tools_documents_and_further_variables() -> None:
    template = ChatTemplate("{{ tools }} {{ documents }} {{ x }} {{ add_generation_prompt }}", {})
    options = RenderOptions([{"a": 1}], [{"b": 2}], add_generation_prompt=False, variables={"x": 3})
    assert template.render([], options) == "[{'a': 1}] [{'b': 2}] 3 False"


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "tokenize"])
def test_variables_cannot_take_the_place_of_what_is_given(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"has '{name}'") as error:
        ChatTemplate("", {}).render([], RenderOptions(variables={name: 1}))
    assert error.value.param == "chat_template_kwargs"


def test_a_word_is_found_at_the_beginning_and_behind_a_space(demo_model: Path) -> None:
    tokenizer = Tokenizer(demo_model)
    found = encode_bad_words(["Paris", " Paris", "New York"], tokenizer)
    assert [tokenizer.decode(ids) for ids in found] == ["Paris", " Paris", "New York", " New York"]


def test_no_words_need_no_tokens(demo_model: Path) -> None:
    assert encode_bad_words([], Tokenizer(demo_model)) == ()
