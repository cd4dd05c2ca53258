"""Prompts in the forms that users have them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.llm.prompts import (
    EncodedPrompt,
    Prompt,
    read_conversations,
    read_prompts,
)
from pagemesh.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Those of "Once upon"."""
    (encoded,) = tokenizer.encode_batch(["Once upon"], add_special_tokens=True)
    return tuple(encoded)


def test_one_prompt_has_four_forms(tokenizer: Tokenizer, ids: tuple[int, ...]) -> None:
    text, tokens = EncodedPrompt("Once upon", ids), EncodedPrompt(None, ids)
    assert read_prompts("Once upon", tokenizer) == [text]
    assert read_prompts({"prompt": "Once upon"}, tokenizer) == [text]
    assert read_prompts(list(ids), tokenizer) == [tokens]
    assert read_prompts({"prompt_token_ids": ids}, tokenizer) == [tokens]


def test_several_prompts_keep_their_order(tokenizer: Tokenizer, ids: tuple[int, ...]) -> None:
    prompts: list[Prompt] = [[5, 6], "Once upon", {"prompt_token_ids": [7]}, "Once upon"]
    assert read_prompts(prompts, tokenizer) == [
        EncodedPrompt(None, (5, 6)),
        EncodedPrompt("Once upon", ids),
        EncodedPrompt(None, (7,)),
        EncodedPrompt("Once upon", ids),
    ]
    assert read_prompts([], tokenizer) == []


def test_token_ids_may_bring_the_text_that_they_are_shown_with(tokenizer: Tokenizer) -> None:
    prompt = {"prompt_token_ids": [5], "prompt": "five"}
    assert read_prompts([prompt], tokenizer) == [EncodedPrompt("five", (5,))]


@pytest.mark.parametrize(
    ("prompts", "complaint"),
    [
        (5, "prompts is of type int, but must be a prompt or a list of them"),
        (["a", None], "prompts[1] is of type NoneType, but must be text or token ids"),
        (["a", [1, "b"]], "prompts[1] has the token id 'b', but ids are integers"),
        ([[1], [True]], "prompts[1] has the token id True, but ids are integers"),
        ([{"text": "a"}], "prompts[0] has 'text', but must have 'prompt' or 'prompt_token_ids'"),
        ([{}], "prompts[0] has nothing, but must have 'prompt' or 'prompt_token_ids'"),
        ([{"prompt": 5}], "prompts[0]['prompt'] is 5, but must be text"),
        ({"prompt_token_ids": "abc"}, "prompts[0] is of type str, but must be text or token ids"),
    ],
)
def test_what_is_no_prompt_is_named(tokenizer: Tokenizer, prompts: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read_prompts(prompts, tokenizer)
    assert refusal.value.message == complaint


def test_conversations_are_rendered_by_the_chat_template(tokenizer: Tokenizer) -> None:
    one = [{"role": "user", "content": "Who are you?"}]
    two = [{"role": "user", "content": "Hello!"}]
    (only,) = read_conversations(one, tokenizer)
    assert only.text == tokenizer.chat_template.render(one)
    (expected,) = tokenizer.encode_batch([str(only.text)], add_special_tokens=False)
    assert only.token_ids == tuple(expected)
    assert read_conversations([one, two], tokenizer)[0] == only
    assert read_conversations([one, two], tokenizer)[1].text == tokenizer.chat_template.render(two)


def test_a_conversation_that_the_template_refuses_is_named(tokenizer: Tokenizer) -> None:
    good = [{"role": "user", "content": "Hello!"}]
    with pytest.raises(InvalidRequestError, match=r"^messages\[1\]: the model's chat template"):
        read_conversations([good, [{"content": "who says this?"}]], tokenizer)
