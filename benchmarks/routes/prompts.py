"""Prompts of given lengths in tokens, as text and as ids: the project's own text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from routes.vocabulary import project_texts

from pagemesh.tokenizer.tokenizer import Tokenizer

_MOST_CHARS_PER_TOKEN: Final = 10


class Prompt(NamedTuple):
    """One prompt in the forms that it is sent in."""

    token_ids: list[int]
    text: str

    def body(self, form: str, model: str) -> bytes:
        """Of a request to OpenAI's completions for one token; `form` is "text" or "ids"."""
        prompt: object = self.text if form == "text" else self.token_ids
        fields = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        return json.dumps(fields | {"ignore_eos": True}).encode()


def make_prompts(tokenizer: Tokenizer, lengths: Iterable[int]) -> dict[int, Prompt]:
    """By length; no two begin alike."""
    text = "".join(project_texts())
    prompts = {}
    for length in lengths:
        long = f"{length}. {text[: _MOST_CHARS_PER_TOKEN * length]}"
        ids = tokenizer.encode_batch([long], add_special_tokens=True)[0][:length]
        cut = tokenizer.decode(ids)
        # The end may be cut within a character.
        again = tokenizer.encode_batch([cut], add_special_tokens=True)[0]
        prompts[length] = Prompt(again, cut)
    return prompts
