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
        self._newline = self._plain_ids("\n")
        self._headers = {
            role: [TURN_START_ID, *self._plain_ids(f"{role}\n")]
            for role in ("system", "user", "assistant")
        }

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode(self, document: Document) -> Encoded:
        """The ids that the chat template would give, closed by the end-of-text token."""
        ids: list[int] = []
        learn: list[bool] = []

        def add(new: list[int], learned: bool) -> None:
            ids.extend(new)
            learn.extend([learned] * len(new))

        if document.text:
            add(self._plain_ids(document.text), True)
        for message in document.messages:
            answers = message["role"] == "assistant"
            add(self._headers[message["role"]], False)
            add([*self._plain_ids(message["content"]), TURN_END_ID], answers)
            add(self._newline, False)
        add([END_OF_TEXT_ID], True)
        return Encoded(ids, learn)

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
