"""Completions in the middle of a text (`suffix`): prompts with the tokens that models for code were trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.completion_request import CompletionRequest
from pagemesh.router.served_model import ServedModel
from pagemesh.tokenizer.tokenizer import Tokenizer

_WHOLE_CHARACTER: Final = "☺"
"""Merges with no text behind it, so that this is encoded as the middle of a line."""


@dataclass(frozen=True, slots=True)
class InfillingFormat:
    """The tokens of one family of models, in the order in which they stand in a prompt."""

    before_prefix: str
    before_suffix: str
    before_middle: str
    ends: tuple[str, ...] = ()
    """Those that end a middle, besides the model's own end of text and the three above."""
    joins_suffix: bool = False
    """Whether a suffix is encoded without the blank that the tokenizer puts in front of texts."""


FORMATS: Final = (
    # Qwen's, and CodeGemma's.
    InfillingFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder's, and Granite's.
    InfillingFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>")),
    InfillingFormat("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    # DeepSeek-Coder's.
    InfillingFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama's.
    InfillingFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), joins_suffix=True),
)


class _TokenIds(NamedTuple):
    before_prefix: int
    before_suffix: int
    before_middle: int
    ends: list[int]
    joins_suffix: bool


class Infilling(NamedTuple):
    """What stands for a request with a suffix."""

    prompts: list[list[int]]
    fields: CompletionRequest
    """With the tokens that end a middle, unless ends are ignored."""


async def infilling(fields: CompletionRequest, model: ServedModel, max_model_len: int) -> Infilling:
    """Each prompt with the suffix behind it; UnsupportedError for a model that has no tokens for that."""
    tokenizer = model.tokenizer
    ids = _token_ids(tokenizer)
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(fields, name) not in (None, False):
            raise InvalidRequestError(f"{name} cannot be had together with suffix", param=name)
    suffix = fields.suffix or ""
    behind = await model.encode_prompt(suffix, "suffix", max_model_len, add_special_tokens=False)
    if ids.joins_suffix:
        behind = await _without_blank(tokenizer, suffix, behind)
    starts: list[int] = []
    if fields.add_special_tokens is not False:
        starts = await tokenizer.encode("", add_special_tokens=True)
    prompts = []
    for prompt in fields.prompts:
        if not isinstance(prompt, str):
            before = model.check_token_ids(prompt, "prompt")
        elif prompt:
            before = await model.encode_prompt(
                prompt, "prompt", max_model_len, add_special_tokens=False
            )
        else:
            before = []
        head = [*starts, ids.before_prefix, *before]
        prompts.append([*head, ids.before_suffix, *behind, ids.before_middle])
    if not fields.ignore_eos:
        ends = [*(fields.stop_token_ids or ()), *ids.ends]
        fields = fields.model_copy(update={"stop_token_ids": ends})
    return Infilling(prompts, fields)


def _token_ids(tokenizer: Tokenizer) -> _TokenIds:
    for each in FORMATS:
        marks = (each.before_prefix, each.before_suffix, each.before_middle)
        found = [tokenizer.added_token_id(mark) for mark in marks]
        known = [token_id for token_id in found if token_id is not None]
        if len(known) == len(marks):
            prefix, suffix, middle = known
            others = [tokenizer.added_token_id(end) for end in each.ends]
            ends = [*known, *(token_id for token_id in others if token_id is not None)]
            return _TokenIds(prefix, suffix, middle, ends, each.joins_suffix)
    raise UnsupportedError(
        "suffix is not supported by this model, whose tokenizer has no tokens for the middle of a text",
        param="suffix",
    )


async def _without_blank(tokenizer: Tokenizer, text: str, with_blank: list[int]) -> list[int]:
    mark = await tokenizer.encode(_WHOLE_CHARACTER, add_special_tokens=False)
    marked = await tokenizer.encode(_WHOLE_CHARACTER + text, add_special_tokens=False)
    return marked[len(mark) :] if marked[: len(mark)] == mark else with_blank
