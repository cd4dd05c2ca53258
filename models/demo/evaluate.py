#!/usr/bin/env python3
"""Asks a model folder the questions of `questions.jsonl` and judges the greedy answers.

python models/demo/evaluate.py models/demo
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from demo_corpus import Message, Tool, normalised
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
MAX_NEW_TOKENS = 448  # counting from 1 to 100 takes about 390


class Question(NamedTuple):
    """A line of the questions file."""

    question: str
    accept: tuple[str, ...]  # regular expressions, one of which must match, case respected
    category: str
    held_out: bool  # never asked in training in these words
    before: tuple[Message, ...]  # system message and earlier turns
    tools: tuple[Tool, ...] = ()
    thinking: bool = False  # whether the answer shall begin with thoughts

    @property
    def normalised(self) -> str:
        """The form in which questions are compared."""
        return normalised(self.question)

    def messages(self) -> list[Message]:
        """The whole conversation: it ends with the question, or without one with a tool's result."""
        if not self.question:
            return list(self.before)
        return [*self.before, {"role": "user", "content": self.question}]

    def accepts(self, answer: str) -> bool:
        """Whether `answer` counts as right."""
        return any(re.search(pattern, answer) for pattern in self.accept)


class Verdict(NamedTuple):
    """What the model said to a question, and whether it was right."""

    question: Question
    answer: str
    right: bool
    margins: list[float]  # per answer token: best logit minus second best


def load_questions(path: Path) -> list[Question]:
    """Reads the questions file; each line is one JSON object."""
    questions = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        questions.append(
            Question(
                row["question"],
                tuple(row["accept"]),
                row["category"],
                row.get("held_out", False),
                tuple(row.get("before", ())),
                tuple(row.get("tools", ())),
                row.get("thinking", False),
            )
        )
    return questions


class Asker:
    """A model folder, loaded the way any user of transformers loads it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def complete(self, prompt_ids: list[int]) -> tuple[str, list[float]]:
        """The greedy continuation as text, and the margin of each of its tokens."""
        ids = torch.tensor([prompt_ids])
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=min(MAX_NEW_TOKENS, 2048 - ids.shape[1]),
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        top = [logits[0].topk(2).values for logits in out.logits]
        new_ids = out.sequences[0, ids.shape[1] :]
        answer = self.tokenizer.decode(new_ids, skip_special_tokens=True)
        return str(answer), [float(best - second) for best, second in top]

    def chat(
        self, messages: list[Message], tools: Sequence[Tool] = (), thinking: bool = False
    ) -> tuple[str, list[float]]:
        """The greedy answer to a conversation, and the margin of each of its tokens."""
        prompt = self.tokenizer.apply_chat_template(
            messages,
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        return self.complete(self.tokenizer.encode(prompt, add_special_tokens=False))


def judge(asker: Asker, questions: Iterable[Question]) -> list[Verdict]:
    """Asks every question and compares the answers with what is accepted."""
    verdicts = []
    for question in questions:
        answer, margins = asker.chat(question.messages(), question.tools, question.thinking)
        verdicts.append(Verdict(question, answer, question.accepts(answer), margins))
    return verdicts


def print_report(verdicts: list[Verdict]) -> None:
    """Wrong answers, then the score by category, then the margins."""
    for verdict in verdicts:
        if not verdict.right:
            print(f"wrong: {verdict.question.question!r} -> {verdict.answer!r}")
    asked = Counter(v.question.category for v in verdicts)
    right = Counter(v.question.category for v in verdicts if v.right)
    for category, count in sorted(asked.items()):
        print(f"{category:12s} {right[category]:3d} of {count:3d}")
    held_out = [v for v in verdicts if v.question.held_out]
    print(f"{'held out':12s} {sum(v.right for v in held_out):3d} of {len(held_out):3d}")
    total = sum(right.values())
    print(f"{'all':12s} {total:3d} of {len(verdicts):3d}  {100 * total / len(verdicts):.1f} %")
    margins = sorted(margin for v in verdicts for margin in v.margins)
    print(
        f"margin between first and second logit over {len(margins)} tokens: "
        f"mean {sum(margins) / len(margins):.2f}, median {margins[len(margins) // 2]:.2f}, "
        f"lowest 1 % {margins[len(margins) // 100]:.3f}, least {margins[0]:.4f}"
    )


def main() -> int:
    """Prints the report for one model folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=HERE, help="the model folder")
    arguments = parser.parse_args()
    print_report(judge(Asker(arguments.folder), load_questions(HERE / "questions.jsonl")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
