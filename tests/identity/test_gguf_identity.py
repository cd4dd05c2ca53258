"""A real model in a GGUF file answers with the tokens that transformers continues the same prompts with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh import LLM, SamplingParams
from tests.identity.checkpoints import Continuation, Model
from tests.support.late_imports import transformers
from tests.support.smollm2 import CHATS, smollm2

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def file() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def llm(file: Path) -> Iterator[LLM]:
    """In float32, in which transformers' sums are no matter of luck."""
    with LLM(str(file), dtype="float32", max_model_len=256) as model:
        yield model


@pytest.fixture(scope="module")
def reference(file: Path) -> Model:
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    read = reader.load_gguf_checkpoint(str(file))
    model: Model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**read["config"]))
    read = reader.load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def test_templates_and_tokens_are_those_of_transformers(
    file: Path, llm: LLM, reference: Model
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for chat in CHATS:
        num_tokens = len(chat.token_ids)
        greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        answer = llm.chat(chat.messages, greedy, use_tqdm=False)[0]
        text = tokenizer.apply_chat_template(
            chat.messages, add_generation_prompt=True, tokenize=False
        )
        assert text == chat.prompt
        prompt = list(answer.prompt_token_ids)
        assert prompt == tokenizer(text, add_special_tokens=False).input_ids
        continuation = Continuation(reference, prompt, num_tokens)
        assert continuation.least_margin > 1e-3
        assert list(answer.outputs[0].token_ids) == continuation.token_ids == chat.token_ids


def test_an_answer_ends_with_the_turn(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=32)
    output = llm.chat(CHATS[0].messages, greedy, use_tqdm=False)[0].outputs[0]
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"
