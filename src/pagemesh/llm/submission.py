"""From prompts and sampling parameters to requests that the engine will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest
from pagemesh.errors import InvalidRequestError
from pagemesh.llm.generation import Answer, PromptRun
from pagemesh.llm.params import SamplingParams
from pagemesh.llm.prompts import EncodedPrompt, at
from pagemesh.sampling.seeds import Seeds
from pagemesh.scheduler.limits import check_request
from pagemesh.tokenizer.tokenizer import Tokenizer, encode_bad_words


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
