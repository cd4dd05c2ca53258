"""One call's requests on the engine: made from prompts and parameters, followed until all have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.core.request import RequestOutput as EngineOutput
from pagemesh.engine.engine import EngineCore
from pagemesh.errors import InvalidRequestError, PagemeshError, UnavailableError
from pagemesh.llm.inbox import Deliveries, Progress
from pagemesh.llm.outputs import CompletionOutput, Position, RequestOutput, read_logprobs
from pagemesh.llm.params import SamplingParams
from pagemesh.llm.prompts import EncodedPrompt, at
from pagemesh.sampling.logprobs import TokenLogprobs, best_answers
from pagemesh.sampling.params import Seeds
from pagemesh.scheduler.limits import check_request
from pagemesh.tokenizer.detokenizer import AnswerText
from pagemesh.tokenizer.tokenizer import Tokenizer, encode_bad_words

_NAMES: Final[dict[FinishReason, Literal["stop", "length"]]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


class Answer:
    """One of the answers to a prompt."""

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        """`stop` are the strings that end it, of which the engine knows nothing."""
        self.request = request
        self.num_cached_tokens = 0
        self.error: PagemeshError | None = None
        self._tokenizer = tokenizer
        self._text = AnswerText(tokenizer, stop, request.sampling.min_tokens)
        # Without stop strings nobody needs text before the end, and all at once it costs least.
        self.reads_along = bool(stop)
        """Whether its text may end it, so that it is read while it grows."""
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_read = 0
        self._stop_string: str | None = None
        self._finish_reason: FinishReason | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be added."""
        return self._finish_reason is not None

    def add(self, output: EngineOutput) -> None:
        """Take what the engine made known."""
        self._token_ids += output.token_ids
        self._logprobs += output.logprobs or ()
        self._prompt_logprobs += output.prompt_logprobs or ()
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self._finish_reason = output.finish_reason
        if output.finish_reason is FinishReason.CANCELLED:
            self.error = UnavailableError("the engine was stopped")
        elif output.finish_reason is FinishReason.ERROR:
            self.error = output.error
        if self.reads_along or self.ended:
            self._read()

    @property
    def cumulative_logprob(self) -> float:
        """Of its tokens; of an answer that failed, less than of any other."""
        if self.error is not None:
            return -math.inf
        return sum(item.logprob for item in self._logprobs)

    def output(self, index: int, *, with_logprobs: bool) -> CompletionOutput:
        """The answer, once it has ended."""
        assert self._finish_reason is not None
        is_scored = self.request.sampling.logprobs is not None
        return CompletionOutput(
            index=index,
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            cumulative_logprob=self.cumulative_logprob if is_scored else None,
            logprobs=read_logprobs(self._logprobs, self._tokenizer) if with_logprobs else None,
            finish_reason=_NAMES[self._finish_reason] if self.error is None else "error",
            stop_reason=self._stop_reason(),
        )

    def prompt_logprobs(self) -> tuple[Position | None, ...] | None:
        """One for each token of the prompt, if they were asked for."""
        if self.request.sampling.prompt_logprobs is None:
            return None
        return (None, *read_logprobs(self._prompt_logprobs, self._tokenizer))

    def _read(self) -> None:
        """Turn the ids that came since into text; what follows a stop string is cut off."""
        piece = self._text.push(
            self._token_ids[self._num_read :],
            ended=self.ended,
            stop_token=self._finish_reason is FinishReason.STOP,
        )
        self._pieces.append(piece.text)
        self._num_read += piece.num_tokens
        if piece.stop_string is not None:
            self._stop_string = piece.stop_string
            self._finish_reason = FinishReason.STOP
            del self._token_ids[self._num_read :], self._logprobs[self._num_read :]

    def _stop_reason(self) -> int | str | None:
        if self._stop_string is not None or self._finish_reason is not FinishReason.STOP:
            return self._stop_string
        last = self._token_ids[-1]
        return last if last in self.request.sampling.stop_token_ids else None


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A prompt and its answers."""

    request_id: str
    prompt: EncodedPrompt
    answers: Sequence[Answer]

    num_best: int
    """How many of them are given, if not all."""

    with_logprobs: bool

    @property
    def ended(self) -> bool:
        """Whether all answers have ended."""
        return all(answer.ended for answer in self.answers)

    def output(self) -> RequestOutput:
        """All answers, once they have ended."""
        first = self.answers[0]
        given = self._best()
        errors = (answer.error for answer in given if answer.error is not None)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.token_ids,
            outputs=tuple(
                answer.output(index, with_logprobs=self.with_logprobs)
                for index, answer in enumerate(given)
            ),
            num_cached_tokens=first.num_cached_tokens,
            prompt_logprobs=first.prompt_logprobs(),
            error=next(errors, None),
        )

    def _best(self) -> Sequence[Answer]:
        if self.num_best == len(self.answers):
            return self.answers
        ranks = best_answers([a.cumulative_logprob for a in self.answers], self.num_best)
        return [self.answers[index] for index in ranks]


def run_to_end(
    engine: EngineCore, deliveries: Deliveries, runs: Sequence[PromptRun], progress: Progress
) -> None:
    """Submit everything and wait for it; nothing is left in the engine, however this ends.

    Raises UnavailableError when the engine is stopped already, and InternalError when it died or hangs.
    """
    running = {answer.request.request_id: (run, answer) for run in runs for answer in run.answers}
    reads_along = any(answer.reads_along for _, answer in running.values())
    with deliveries.inbox(list(running), engine.check, eager=reads_along) as inbox:
        try:
            for run in runs:
                for answer in run.answers:
                    engine.submit(answer.request)
            while running:
                for output in inbox.get():
                    if output.request_id not in running:
                        continue
                    run, answer = running[output.request_id]
                    answer.add(output)
                    if answer.ended:
                        del running[output.request_id]
                        # A stop string, of which the engine knows nothing.
                        if output.finish_reason is None:
                            engine.cancel(output.request_id)
                    num_prompt_tokens = len(run.prompt.token_ids) if run.ended else None
                    progress.add(len(output.token_ids), num_prompt_tokens)
        finally:
            for request_id in running:
                engine.cancel(request_id)


def for_each(
    sampling_params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> list[SamplingParams]:
    """Sampling parameters of every prompt; InvalidRequestError when there are not as many."""
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    check_count("sampling_params", sampling_params, num_prompts)
    return list(sampling_params)


def check_count(name: str, values: Sequence[object], num_prompts: int) -> None:
    """Raise InvalidRequestError unless there is one value for each prompt."""
    if len(values) != num_prompts:
        raise InvalidRequestError(
            f"{name} has {len(values)} entries, but there are {num_prompts} prompts", param=name
        )


class Submission:
    """Makes the requests of one model's engine."""

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer, seed: int | None) -> None:
        """Prompts that bring no seed draw theirs from this one; see `Seeds`."""
        self._info = info
        self._tokenizer = tokenizer
        self._seeds = Seeds(seed)

    def make_runs(
        self,
        call: str,
        prompts: Sequence[EncodedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams],
        *,
        priorities: Sequence[int] | None,
        field: str,
    ) -> list[PromptRun]:
        """The requests of a call; InvalidRequestError naming the prompt, as an item of `field`."""
        params = for_each(sampling_params, len(prompts))
        if priorities is None:
            priorities = [0] * len(prompts)
        check_count("priority", priorities, len(prompts))
        return [
            self.make_run(
                f"{call}-{index}",
                prompt,
                params[index],
                priority=priorities[index],
                place=f"{field}[{index}]",
            )
            for index, prompt in enumerate(prompts)
        ]

    def make_run(
        self,
        request_id: str,
        prompt: EncodedPrompt,
        params: SamplingParams,
        *,
        priority: int,
        place: str,
    ) -> PromptRun:
        """The requests of one prompt's answers.

        Raises InvalidRequestError naming `place` when the engine would refuse them.
        """
        seed = self._seeds.draw() if params.seed is None else params.seed
        room = self._info.max_model_len - len(prompt.token_ids)
        bad_words = encode_bad_words(params.bad_words or (), self._tokenizer)
        answers = []
        for index in range(params.num_answers):
            sampling = params.for_engine(seed + index, room, bad_words)
            if index > 0:
                # Once is enough: all answers have the same prompt.
                sampling = replace(sampling, prompt_logprobs=None)
            request = EngineRequest(
                request_id=f"{request_id}-{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=sampling,
                priority=priority,
                fork_of=f"{request_id}-0" if index > 0 else None,
            )
            answers.append(Answer(request, self._tokenizer, params.stop_strings))
        try:
            check_request(answers[0].request, self._info, self._tokenizer.vocab_size)
        except InvalidRequestError as error:
            raise at(place, error) from error
        return PromptRun(request_id, prompt, answers, params.n, params.logprobs is not None)
