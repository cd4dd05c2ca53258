"""Completions that begin with their prompt (`echo`), and those that are nothing else (`max_tokens` 0)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.completion_response import CompletionResponder
from pagemesh.router.openai.logprobs import (
    EchoedPrompt,
    TokenNames,
    completion_logprobs,
    with_prompt,
)
from pagemesh.router.openai.responses import CollectedChoice
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.detokenizer import AnswerText
from pagemesh.tokenizer.tokenizer import Tokenizer

_NUM_INLINE_TOKENS: Final = 256
"""Tokens that are turned into text at once: well under 5 ms."""


async def echoed_text(
    text: str, token_ids: Sequence[int], tokenizer: Tokenizer, *, add_special_tokens: bool
) -> EchoedPrompt:
    """A prompt that was given as text, all of which was made these ids."""
    places = await tokenizer.encode_places(text, add_special_tokens=add_special_tokens)
    return EchoedPrompt(text, token_ids, places)


async def echoed_tokens(token_ids: Sequence[int], tokenizer: Tokenizer) -> EchoedPrompt:
    """A prompt that was given as ids, with the names of its special tokens."""
    text = AnswerText(tokenizer, (), 0, hidden_token_ids=frozenset(), tells_places=True)
    pieces: list[str] = []
    places: list[int] = []
    for start in range(0, len(token_ids), _NUM_INLINE_TOKENS):
        end = start + _NUM_INLINE_TOKENS
        piece = text.push(token_ids[start:end], ended=end >= len(token_ids))
        pieces.append(piece.text)
        places += (place.start for place in piece.places)
        # Others are served between two pieces of a long prompt.
        await asyncio.sleep(0)
    return EchoedPrompt("".join(pieces), token_ids, places)


class EchoResponder:
    """A `Responder` that puts each choice's prompt in front of what another one writes."""

    def __init__(
        self,
        inner: CompletionResponder,
        prompts: Sequence[EchoedPrompt],
        num_given: int,
        *,
        only_prompts: bool,
        num_logprobs: int | None,
        gives_prompt_logprobs: bool,
        tokens: TokenNames,
    ) -> None:
        """`num_given` choices are given to each prompt, in order.

        With `only_prompts`, what was generated is left out; `gives_prompt_logprobs` says whether vLLM's
        `prompt_logprobs` were asked for besides.
        """
        self._inner = inner
        self._prompts = prompts
        self._num_given = num_given
        self._only_prompts = only_prompts
        self._num_logprobs = num_logprobs
        self._gives_prompt_logprobs = gives_prompt_logprobs
        self._tokens = tokens
        self._begun: set[int] = set()
        # By prompt: its log probabilities, and what its other answers have to wait with until they are known.
        self._scores: dict[int, tuple[TokenLogprobs, ...]] = {}
        self._waiting: dict[int, list[ChoiceDelta]] = defaultdict(list)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        if self._only_prompts:
            choices = [
                CollectedChoice([], StopReason.LENGTH, [], choice.prompt_logprobs)
                for choice in choices
            ]
        body = self._inner.whole(choices, self._counted(usage))
        for written, choice in zip(body["choices"], choices, strict=True):
            prompt = self._prompt_of(written["index"])
            written["text"] = prompt.text + written["text"]
            if self._num_logprobs is not None:
                written["logprobs"] = self._with_prompt(
                    written["logprobs"], prompt, choice.prompt_logprobs, self._num_logprobs
                )
            if not self._gives_prompt_logprobs:
                written["prompt_logprobs"] = None
        return body

    def keepalive(self) -> bytes:
        """As the inner one's."""
        return self._inner.keepalive()

    def events(self, delta: ChoiceDelta) -> bytes:
        """The frames for what became known about a choice; the first has the prompt.

        Of all answers to a prompt, the first one's first token brings the prompt's log probabilities.
        """
        number = delta.index // self._num_given
        if self._num_logprobs is not None and number not in self._scores:
            if not delta.prompt_logprobs and len(self._prompts[number].token_ids) > 1:
                self._waiting[number].append(delta)
                return b""
            self._scores[number] = delta.prompt_logprobs
        known = [delta, *self._waiting.pop(number, ())]
        return b"".join(map(self._frames_of, known))

    def _frames_of(self, delta: ChoiceDelta) -> bytes:
        frames = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            prompt = self._prompt_of(delta.index)
            scores = self._scores.get(delta.index // self._num_given, ())
            logprobs = None
            if self._num_logprobs is not None:
                none = completion_logprobs((), self._tokens)
                logprobs = self._with_prompt(none, prompt, scores, self._num_logprobs)
            frames = self._inner.echo(delta.index, prompt.text, logprobs)
        if self._only_prompts:
            reason = delta.stop_reason and StopReason.LENGTH
            delta = ChoiceDelta(delta.index, "", (), reason)
        return frames + self._inner.events(delta)

    def end(self, usage: Usage) -> bytes:
        """As the inner one's."""
        return self._inner.end(self._counted(usage))

    def failure(self, error: PagemeshError) -> bytes:
        """As the inner one's."""
        return self._inner.failure(error)

    def _prompt_of(self, index: int) -> EchoedPrompt:
        return self._prompts[index // self._num_given]

    def _with_prompt(
        self,
        logprobs: dict[str, Any],
        prompt: EchoedPrompt,
        scores: Sequence[TokenLogprobs],
        num_logprobs: int,
    ) -> dict[str, Any]:
        return with_prompt(logprobs, prompt, scores, num_logprobs, self._tokens)

    def _counted(self, usage: Usage) -> Usage:
        return replace(usage, num_completion_tokens=0) if self._only_prompts else usage
