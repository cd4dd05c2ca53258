"""The answer to POST /v1/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import ChoiceDelta, Usage
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chunk_frames import ChunkFrames
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.logprobs import PlacedScores, completion_logprobs, prompt_logprobs
from pagemesh.router.openai.responses import (
    CollectedChoice,
    stop_fields,
    usage_object,
    usage_so_far,
)
from pagemesh.router.openai.sse import DONE, KEEPALIVE, data_frame


class CompletionResponder:
    """Writes completions; a chunk has the same form as the whole."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        options: AnswerOptions,
        *,
        prompts: Sequence[Sequence[int]] = (),
        num_given: int = 1,
    ) -> None:
        """`num_given` choices are given to each of the prompts, in order."""
        self._options = options
        self._prompts = prompts
        self._num_given = num_given
        # By choice: characters in front of its text, its log probabilities, its tokens so far.
        self._num_echoed: dict[int, int] = {}
        self._scores: dict[int, PlacedScores] = defaultdict(PlacedScores)
        self._num_tokens: dict[int, int] = {}
        self._head: dict[str, Any] = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._frames = ChunkFrames(
            self._head,
            # A stream that ends with the usage has the field in every chunk.
            {"usage": None} if options.include_usage else {},
            {"index": 0, "text": ChunkFrames.text_place(), "logprobs": None, "finish_reason": None},
        )
        self._is_plain = not (
            options.has_logprobs or options.has_token_ids or options.has_continuous_usage
        )

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        deltas = [choice.as_delta(index) for index, choice in enumerate(choices)]
        return {
            **self._head,
            "choices": [
                {"token_ids": None, "prompt_token_ids": None}
                | self._choice(delta)
                | stop_fields(delta)
                | self._about_prompt(delta.index)
                | {"prompt_logprobs": self._prompt_logprobs(delta)}
                for delta in deltas
            ],
            "usage": usage_object(usage),
        }

    def keepalive(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def events(self, delta: ChoiceDelta) -> bytes:
        """The frame for what became known about a choice; may be empty."""
        if self._is_plain and delta.stop_reason is None:
            return self._frames.text(delta.index, delta.text) if delta.text else b""
        is_first = delta.index not in self._num_tokens
        num_tokens = self._num_tokens.get(delta.index, 0) + len(delta.token_ids)
        self._num_tokens[delta.index] = num_tokens
        options = self._options
        choice = self._choice(delta)
        scores = choice["logprobs"] and choice["logprobs"]["tokens"]
        if not (
            delta.text
            or delta.stop_reason is not None
            or scores
            or (options.has_token_ids and delta.token_ids)
        ):
            return b""
        if delta.stop_reason is not None:
            choice |= stop_fields(delta)
        if is_first:
            choice |= self._about_prompt(delta.index)
        if not options.has_continuous_usage:
            return self._frames.frame(choice)
        num_prompt_tokens = len(self._prompts[delta.index // self._num_given])
        return self._frames.frame(choice, {"usage": usage_so_far(num_prompt_tokens, num_tokens)})

    def echo(self, index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
        """The frame with the text in front of a choice, to be asked before the choice's first event."""
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        self._num_echoed[index] = len(text)
        if self._options.has_token_ids:
            choice["token_ids"] = ()
        if not self._options.has_continuous_usage:
            return self._frames.frame(choice)
        num_prompt_tokens = len(self._prompts[index // self._num_given])
        return self._frames.frame(choice, {"usage": usage_so_far(num_prompt_tokens, 0)})

    def end(self, usage: Usage) -> bytes:
        """The token counts, if they were asked for, and the mark of the end."""
        if not self._options.include_usage:
            return DONE
        counts = {**self._head, "choices": [], "usage": usage_object(usage)}
        return data_frame(counts) + DONE

    def failure(self, error: PagemeshError) -> bytes:
        """OpenAI's error object, which its clients raise."""
        return data_frame(error_body(error))

    def _about_prompt(self, index: int) -> dict[str, Any]:
        if not self._options.has_token_ids:
            return {}
        return {"prompt_token_ids": list(self._prompts[index // self._num_given])}

    def _prompt_logprobs(self, choice: ChoiceDelta) -> list[Any] | None:
        if not choice.prompt_logprobs:
            return None
        return prompt_logprobs(choice.prompt_logprobs, self._options.tokens)

    def _choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": None,
        }
        if self._options.has_logprobs:
            num_before = self._num_echoed.get(delta.index, 0)
            scores = self._scores[delta.index].push(delta)
            placed = ((score, num_before + place) for score, place in scores)
            choice["logprobs"] = completion_logprobs(placed, self._options.tokens)
        if self._options.has_token_ids:
            choice["token_ids"] = delta.token_ids
        return choice
