"""Completions that begin with their prompt (`echo`), and those that are nothing else (`max_tokens` 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.logprobs import TokenText, with_prompt
from pagemesh.router.openai.responses import CollectedChoice, Responder


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """One prompt of a request."""

    text: str

    token_ids: Sequence[int]


class EchoResponder:
    """A `Responder` that puts each choice's prompt in front of what another one writes."""

    def __init__(
        self,
        inner: Responder,
        prompts: Sequence[EchoedPrompt],
        num_given: int,
        *,
        only_prompts: bool,
        num_logprobs: int | None,
        gives_prompt_logprobs: bool,
        token_text: TokenText,
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
        self._token_text = token_text
        self._begun: set[int] = set()

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
                written["logprobs"] = with_prompt(
                    written["logprobs"],
                    prompt.token_ids[0],
                    choice.prompt_logprobs,
                    self._num_logprobs,
                    self._token_text,
                )
            if not self._gives_prompt_logprobs:
                written.pop("prompt_logprobs", None)
        return body

    def keepalive(self) -> bytes:
        """As the inner one's."""
        return self._inner.keepalive()

    def events(self, delta: ChoiceDelta) -> bytes:
        """The frames for what became known about a choice; the first has the prompt."""
        text, stop_reason = delta.text, delta.stop_reason
        if self._only_prompts:
            text, stop_reason = "", stop_reason and StopReason.LENGTH
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            text = self._prompt_of(delta.index).text + text
        return self._inner.events(replace(delta, text=text, stop_reason=stop_reason))

    def end(self, usage: Usage) -> bytes:
        """As the inner one's."""
        return self._inner.end(self._counted(usage))

    def failure(self, error: PagemeshError) -> bytes:
        """As the inner one's."""
        return self._inner.failure(error)

    def _prompt_of(self, index: int) -> EchoedPrompt:
        return self._prompts[index // self._num_given]

    def _counted(self, usage: Usage) -> Usage:
        return replace(usage, num_completion_tokens=0) if self._only_prompts else usage
