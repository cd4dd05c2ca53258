"""Turns documents into packed rows of token ids with the places that count in the loss."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from demo_corpus import Corpus, Document
from transformers import PreTrainedTokenizerFast
from vocabulary import END_OF_TEXT_ID, TURN_END_ID, TURN_START_ID


class Encoded(NamedTuple):
    """Token ids side by side with their part in the loss."""

    ids: list[int]
    learn: list[bool]  # whether this token is one the model has to predict


class Packer:
    """Cuts the endless stream of documents into rows.

    Only answers and plain texts are learned: questions are random by construction, and a small
    model must not spend itself on predicting dice.
    """

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
        self._documents = corpus.documents()
        self._tokenizer = tokenizer
        self._assistant = [TURN_START_ID, *self._plain_ids("assistant\n")]

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode(self, document: Document) -> Encoded:
        """The ids that the chat template gives, closed by the end-of-text token."""
        if document.text:
            ids = self._plain_ids(document.text)
            return Encoded([*ids, END_OF_TEXT_ID], [True] * (len(ids) + 1))
        rendered = self._tokenizer.apply_chat_template(
            list(document.messages),
            tools=list(document.tools) or None,
            tokenize=False,
            enable_thinking=document.thinking,
        )
        ids = self._plain_ids(str(rendered))
        # Answers from before the wish for thoughts have none, and would teach to give none.
        learn = self._answers(ids, last_only=document.thinking)
        return Encoded([*ids, END_OF_TEXT_ID], [*learn, True])

    def _answers(self, ids: list[int], last_only: bool) -> list[bool]:
        """Which tokens belong to what the assistant said, ends of turns included."""
        header = self._assistant
        learn = [False] * len(ids)
        starts = [i for i, token in enumerate(ids) if token == TURN_START_ID]
        answers = [i + len(header) for i in starts if ids[i : i + len(header)] == header]
        for start in answers[-1:] if last_only else answers:
            end = ids.index(TURN_END_ID, start) + 1
            learn[start:end] = [True] * (end - start)
        return learn

    def rows(self, length: int) -> Iterator[Encoded]:
        """Rows of `length` + 1 tokens. Each row begins with a document; the last one is cut."""
        while True:
            ids: list[int] = []
            learn: list[bool] = []
            while len(ids) <= length:
                encoded = self.encode(next(self._documents))
                ids.extend(encoded.ids)
                learn.extend(encoded.learn)
            yield Encoded(ids[: length + 1], learn[: length + 1])

    def batches(self, length: int, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Input ids and labels (-100 = not learned), each [tokens / length, length]."""
        rows = self.rows(length)
        while True:
            chosen = [next(rows) for _ in range(tokens // length)]
            ids = torch.tensor([row.ids for row in chosen])
            learn = torch.tensor([row.learn for row in chosen])
            labels = torch.where(learn, ids, torch.full_like(ids, -100))
            yield ids[:, :-1].contiguous(), labels[:, 1:].contiguous()
