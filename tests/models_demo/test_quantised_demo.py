"""The demo model, quantised while it is loaded or before, still answers its questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import pytest

from pagemesh.llm import LLM, SamplingParams
from tests.support.late_imports import transformers
from tests.support.rounded_demo import DEMO, write_demo_awq, write_demo_gguf


@pytest.fixture(scope="module")
def evaluate() -> Iterator[Any]:
    """The script beside the model, which imports others by plain names."""
    before = set(sys.modules)
    sys.path.insert(0, str(DEMO))
    try:
        yield import_module("evaluate")
    finally:
        sys.path.remove(str(DEMO))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO)):
                del sys.modules[name]


def answers(
    questions: Sequence[Any], most: int, model: Path = DEMO, quantization: str | None = None
) -> list[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    prompts = [
        tokenizer.encode(
            tokenizer.apply_chat_template(
                question.messages(),
                tools=list(question.tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=question.thinking,
            ),
            add_special_tokens=False,
        )
        for question in questions
    ]
    # The demo's own type, which a GGUF file does not name.
    with LLM(model, dtype="float32", quantization=quantization, threads=1) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=most),
            use_tqdm=False,
        )
    return [output.outputs[0].text for output in outputs]


@pytest.mark.parametrize(("quantization", "share"), [("fp8", 0.9), ("int8", 0.9), ("int4", 0.8)])
def test_most_questions_are_answered(evaluate: Any, quantization: str, share: float) -> None:
    questions = evaluate.load_questions(DEMO / "questions.jsonl")
    said = answers(questions, evaluate.MAX_NEW_TOKENS, quantization=quantization)
    check(questions, said, share)


@pytest.mark.parametrize(("kind", "share"), [("Q8_0", 0.9), ("Q4_K", 0.8), ("AWQ", 0.8)])
def test_most_questions_are_answered_out_of_other_files(
    evaluate: Any, kind: str, share: float, tmp_path: Path
) -> None:
    questions = evaluate.load_questions(DEMO / "questions.jsonl")
    if kind == "AWQ":
        model = write_demo_awq(tmp_path / "demo-AWQ")
    else:
        type_ = gguf.GGMLQuantizationType[kind]
        model = write_demo_gguf(tmp_path / f"demo.{kind}.gguf", type_)
    check(questions, answers(questions, evaluate.MAX_NEW_TOKENS, model), share)


def check(questions: Sequence[Any], said: Sequence[str], share: float) -> None:
    """At most so many of the answers are wrong."""
    asked = zip(questions, said, strict=True)
    wrong = [(q.question, text) for q, text in asked if not q.accepts(text)]
    assert len(wrong) <= (1 - share) * len(questions), wrong
