"""Completions with a suffix: ids as each family of models was trained with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.completion_request import parse_completion_request
from pagemesh.router.openai.infilling import infilling
from pagemesh.router.served_model import ServedModel
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka

LENGTH = 1000
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
PREFIX, SUFFIX = "def add(a, b):\n    ", "\n    return c\n"


def model_with(folder: Path, *tokens: str) -> ServedModel:
    ids = {str(2048 + index): {"content": token} for index, token in enumerate(tokens)}
    flags = {
        "special": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    }
    decoder = {number: {**flags, **token} for number, token in ids.items()}
    config = {"eos_token": "<|im_end|>", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(folder)
    return ServedModel("m", tokenizer, GenerationDefaults(), created=0, matryoshka=Matryoshka())


@pytest.fixture
def folder(demo_model: Path, tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(demo_model / name, tmp_path)
    return tmp_path


async def filled(model: ServedModel, **fields: Any) -> tuple[list[list[int]], list[int] | None]:
    body = {"prompt": PREFIX, "suffix": SUFFIX, **fields}
    found = await infilling(parse_completion_request(json.dumps(body).encode()), model, LENGTH)
    return found.prompts, found.fields.stop_token_ids


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (
            "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>",
            ["<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"],
        ),
        ("<fim_prefix>{}<fim_suffix>{}<fim_middle>", ["<fim_pad>", "<file_sep>"]),
        ("<fim-prefix>{}<fim-suffix>{}<fim-middle>", ["<fim-pad>"]),
        ("<｜fim▁begin｜>{}<｜fim▁hole｜>{}<｜fim▁end｜>", []),
    ],
    ids=["qwen", "starcoder", "santacoder", "deepseek"],
)
async def test_ids_are_those_of_the_text_with_the_tokens_in_it(
    folder: Path, text: str, ends: list[str]
) -> None:
    tokens = [*text.split("{}"), *ends]
    model = model_with(folder, *tokens)
    whole = text.format(PREFIX, SUFFIX)
    expected = await model.tokenizer.encode(whole, add_special_tokens=True)
    stops = [model.tokenizer.added_token_id(token) for token in tokens]
    assert await filled(model) == ([expected], stops)
    assert None not in stops


async def test_tokens_that_a_model_has_not_end_nothing(folder: Path) -> None:
    model = model_with(folder, *STARCODER)
    assert (await filled(model, stop_token_ids=[7]))[1] == [7, 2048, 2049, 2050]
    assert (await filled(model, ignore_eos=True))[1] is None


async def test_every_prompt_gets_the_suffix_and_may_be_empty_or_ids(folder: Path) -> None:
    model = model_with(folder, *STARCODER)
    (behind,) = model.tokenizer.encode_batch([SUFFIX], add_special_tokens=False)
    assert (await filled(model, prompt=[5, 6]))[0] == [[2048, 5, 6, 2049, *behind, 2050]]
    assert (await filled(model, prompt=""))[0] == [[2048, 2049, *behind, 2050]]
    assert len((await filled(model, prompt=["a", "b"]))[0]) == 2


async def test_code_llama_has_no_blank_in_front_of_the_suffix(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE({"<s>": 0, "▁": 1, "a": 2, "b": 3, "☺": 4}, [], unk_token="<s>")
    )
    library.normalizer = tokenizers.normalizers.Prepend("▁")
    library.add_special_tokens(["<s>"])
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 9100}))
    model = model_with(tmp_path, *CODE_LLAMA)
    begin, hole, middle, end = (model.tokenizer.added_token_id(token) for token in CODE_LLAMA)
    prompts, ends = await filled(model, prompt="ab", suffix="ba")
    assert prompts == [[0, begin, 1, 2, 3, hole, 3, 2, middle]]
    assert ends == [begin, hole, middle, end]
    bare = await filled(model, prompt="ab", suffix="ba", add_special_tokens=False)
    assert bare[0] == [[begin, 1, 2, 3, hole, 3, 2, middle]]


async def test_a_model_without_the_tokens_refuses_a_suffix_by_name(folder: Path) -> None:
    model = model_with(folder, *STARCODER[:2])
    with pytest.raises(UnsupportedError, match="no tokens for the middle of a text") as refused:
        await filled(model)
    assert refused.value.param == "suffix"


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("truncate_prompt_tokens", 5)])
async def test_what_makes_no_sense_with_a_suffix_is_refused(
    folder: Path, name: str, value: object
) -> None:
    model = model_with(folder, *STARCODER)
    with pytest.raises(InvalidRequestError, match=f"{name} cannot be had together with suffix"):
        await filled(model, **{name: value})
