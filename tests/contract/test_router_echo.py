"""Completions that begin with their prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain

import pytest

from pagemesh.router.openai.echo import echoed_tokens
from pagemesh.tokenizer import Tokenizer
from tests.contract.router_harness import MODEL, Mesh, running_mesh
from tests.fakes.engine import expected_tokens

TOKENIZER = Tokenizer(MODEL)
PROMPT = list(range(300, 308))


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(num_blocks=256) as mesh:
        yield mesh


def text_of(token_ids: list[int] | tuple[int, ...]) -> str:
    return TOKENIZER.decode(token_ids)


async def test_every_answer_has_its_prompt_in_front(mesh: Mesh) -> None:
    other = list(range(400, 405))
    request = {"prompt": [PROMPT, other], "n": 2, "seed": 3, "max_tokens": 5, "echo": True}
    body = (await mesh.completions(request)).json()
    assert [(choice["text"], choice["logprobs"]) for choice in body["choices"]] == [
        (text_of(prompt) + text_of(expected_tokens(prompt, 5, seed)), None)
        for prompt in (PROMPT, other)
        for seed in (3, 4)
    ]
    assert body["usage"]["completion_tokens"] == 20


async def test_a_text_is_echoed_as_it_was(mesh: Mesh) -> None:
    request = {"prompt": "What is 2 + 2?", "max_tokens": 3, "seed": 1, "echo": True}
    ids = TOKENIZER.encode_batch([str(request["prompt"])], add_special_tokens=True)[0]
    (choice,) = (await mesh.completions(request)).json()["choices"]
    assert choice["text"] == "What is 2 + 2?" + text_of(expected_tokens(ids, 3, 1))


async def test_log_probabilities_begin_with_those_of_the_prompt(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "seed": 1, "max_tokens": 3, "logprobs": 1, "echo": True}
    (choice,) = (await mesh.completions(request)).json()["choices"]
    tokens = [*PROMPT, *expected_tokens(PROMPT, 3, 1)]
    pieces = [TOKENIZER.decode([token_id], skip_special_tokens=False) for token_id in tokens]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == pieces
    assert logprobs["token_logprobs"] == [None, *(-token_id / 1024 for token_id in tokens[1:])]
    assert logprobs["text_offset"] == [len("".join(pieces[:i])) for i in range(len(pieces))]
    assert logprobs["top_logprobs"][0] is None
    assert {len(rivals) for rivals in logprobs["top_logprobs"][1:]} == {2}
    assert choice["prompt_logprobs"] is None


async def test_what_is_looked_for_in_the_prompt_besides_does_not_change_the_echo(
    mesh: Mesh,
) -> None:
    request = {"prompt": PROMPT, "n": 2, "max_tokens": 1, "logprobs": 0, "echo": True}
    plain = (await mesh.completions(request)).json()["choices"]
    both = (await mesh.completions(request | {"prompt_logprobs": 3})).json()["choices"]
    for one, other in zip(plain, both, strict=True):
        assert one["logprobs"]["top_logprobs"][:8] == other["logprobs"]["top_logprobs"][:8]
        assert len(other["prompt_logprobs"]) == len(PROMPT)
        assert len(other["prompt_logprobs"][1]) == 4


async def test_a_prompt_can_be_looked_at_without_an_answer(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "max_tokens": 0, "logprobs": 0, "echo": True}
    body = (await mesh.completions(request)).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text_of(PROMPT), "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *(-id_ / 1024 for id_ in PROMPT[1:])]
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["total_tokens"] == len(PROMPT)


@pytest.mark.parametrize("max_tokens", [4, 0])
async def test_a_stream_begins_with_the_prompt(mesh: Mesh, max_tokens: int) -> None:
    request = {"prompt": PROMPT, "n": 2, "seed": 1, "max_tokens": max_tokens, "echo": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, _ = (await mesh.completions({**request, **options})).events()
    for index in (0, 1):
        choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        tokens = expected_tokens(PROMPT, 4, 1 + index)[:max_tokens]
        assert "".join(choice["text"] for choice in choices) == text_of(PROMPT) + text_of(tokens)
        assert choices[-1]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 2 * max_tokens


@pytest.mark.parametrize("max_tokens", [4, 0])
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=["long", "one token"])
async def test_a_stream_has_the_log_probabilities_of_the_whole(
    mesh: Mesh, max_tokens: int, prompt: list[int]
) -> None:
    prompts = [prompt, list(range(400, 405))]
    request = {
        "prompt": prompts, "n": 3, "seed": 1, "max_tokens": max_tokens, "echo": True, "logprobs": 1,
        "return_token_ids": True,
    }  # fmt: skip
    whole = (await mesh.completions(request)).json()["choices"]
    *chunks, _ = (await mesh.completions({**request, "stream": True})).events()
    for expected in whole:
        parts = [
            chunk["choices"][0]
            for chunk in chunks
            if chunk["choices"][0]["index"] == expected["index"]
        ]
        assert "".join(part["text"] for part in parts) == expected["text"]
        for name, values in expected["logprobs"].items():
            told = [part["logprobs"][name] for part in parts if part["logprobs"] is not None]
            assert list(chain(*told)) == values
        assert list(chain(*(part["token_ids"] for part in parts))) == expected["token_ids"]
        assert parts[-1]["finish_reason"] == expected["finish_reason"] == "length"


async def test_a_long_prompt_of_ids_is_read_piece_by_piece() -> None:
    # An emoji of which the first piece has the beginning.
    emoji = TOKENIZER.encode_batch(["😀"], add_special_tokens=False)[0]
    ids = [*[40] * 255, *emoji, *[41] * 300]
    prompt = await echoed_tokens(ids, TOKENIZER)
    assert prompt.text == TOKENIZER.decode(ids)
    assert prompt.places == [*range(255), *[255] * len(emoji), *range(256, 556)]


@pytest.mark.parametrize("as_ids", [False, True], ids=["as text", "as ids"])
async def test_text_places_and_names_of_an_echo_agree(mesh: Mesh, as_ids: bool) -> None:
    text = "I ❤️ 😀 日本語 and"
    ids = await TOKENIZER.encode(text, add_special_tokens=True)
    # Given as ids, special tokens are a part of the text.
    special = [*ids, 2]
    for prompt, given in ((text, ids), (special, special)):
        request = {
            "prompt": prompt, "seed": 1, "max_tokens": 3, "logprobs": 0, "echo": True,
            "return_tokens_as_token_ids": as_ids,
        }  # fmt: skip
        (choice,) = (await mesh.completions(request)).json()["choices"]
        shown = TOKENIZER.decode(given, skip_special_tokens=False)
        assert choice["text"] == shown + text_of(expected_tokens(given, 3, 1))
        tokens = [*given, *expected_tokens(given, 3, 1)]
        logprobs = choice["logprobs"]
        pieces = [TOKENIZER.token_bytes(token_id) for token_id in tokens]
        # Characters that are whole before the token, of the bytes of all before it.
        assert logprobs["text_offset"] == [
            len(b"".join(pieces[:i]).decode("utf-8", "ignore")) for i in range(len(pieces))
        ]
        if as_ids:
            assert logprobs["tokens"] == [f"token_id:{token_id}" for token_id in tokens]
            assert [list(rivals) for rivals in logprobs["top_logprobs"][1:]] == [
                [name] for name in logprobs["tokens"][1:]
            ]
        else:
            assert logprobs["tokens"][len(given) - 1] == (
                "<|im_end|>" if prompt is special else " and"
            )
