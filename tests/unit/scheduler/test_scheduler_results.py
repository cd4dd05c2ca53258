"""What the scheduler makes of a step's result: errors of single sequences, log probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.errors import InternalError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.scheduler.batch import Batch, StepResult
from tests.unit.scheduler.builders import Stepper, make_info, make_request


def score(token_id: int, logprob: float) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, 1)


def asking(request: EngineRequest) -> EngineRequest:
    return with_params(request, logprobs=0)


def with_params(request: EngineRequest, **params: Any) -> EngineRequest:
    return replace(request, sampling=replace(request.sampling, **params))


def take(stepper: Stepper) -> dict[str, RequestOutput]:
    output = stepper.scheduler.take_output(stepper.scheduler.load())
    assert output is not None
    return {item.request_id: item for item in output.outputs}


def test_a_sequence_with_an_error_ends_alone_and_leaves_nothing_in_the_cache() -> None:
    stepper = Stepper()
    stepper.submit(make_request("broken", 8), make_request("sound", 8))
    batch = stepper.scheduler.schedule()
    error = InternalError("not finite")
    stepper.scheduler.update(batch, StepResult([0, 33], errors={"broken": error}))
    stepper.collect()
    (end,) = stepper.ends["broken"]
    assert (end.token_ids, end.finish_reason, end.error) == ((), FinishReason.ERROR, error)
    assert stepper.tokens["sound"] == [33]
    assert len(stepper.cached) == 2
    assert stepper.num_free_blocks == 16 - 3


def test_log_probabilities_come_with_their_tokens_and_add_up() -> None:
    stepper = Stepper()
    stepper.submit(asking(make_request("a", 4, max_tokens=9)), make_request("b", 4, max_tokens=9))
    known = []
    for token_id, logprob in ((50, -0.5), (51, -0.25), (52, -2.0)):
        logprobs = score(token_id, logprob)
        result = StepResult([token_id, 60], {"a": logprobs})
        stepper.scheduler.update(stepper.scheduler.schedule(), result)
        known.append(logprobs)
        if token_id > 50:
            outputs = take(stepper)
            assert outputs["a"].logprobs == tuple(known)
            assert (outputs["b"].logprobs, outputs["b"].cumulative_logprob) == (None, None)
            known = []
    assert outputs["a"].cumulative_logprob == -2.75


def test_an_end_keeps_the_log_probabilities_that_were_not_delivered() -> None:
    stepper = Stepper()
    stepper.submit(asking(make_request("a", 4)))
    stepper.scheduler.update(stepper.scheduler.schedule(), StepResult([50], {"a": score(50, -1.0)}))
    stepper.requests.cancel("a")
    output = take(stepper)["a"]
    assert (output.token_ids, output.logprobs) == ((50,), (score(50, -1.0),))
    assert (output.cumulative_logprob, output.finish_reason) == (-1.0, FinishReason.CANCELLED)


def test_an_imports_first_token_brings_its_log_probabilities() -> None:
    stepper = Stepper()
    stepper.submit(asking(make_request("a", 4, await_kv=True)))
    stepper.step()
    stepper.requests.first_token("a", 50, score(50, -1.5))
    output = take(stepper)["a"]
    assert (output.token_ids, output.logprobs) == ((50,), (score(50, -1.5),))
    assert output.cumulative_logprob == -1.5


def test_an_imports_first_token_without_the_log_probabilities_asked_for_is_not_used() -> None:
    stepper = Stepper()
    stepper.submit(asking(make_request("a", 4, await_kv=True)))
    stepper.step()
    stepper.requests.first_token("a", 50)
    assert stepper.requests["a"].num_generated_tokens == 0


def test_rules_know_the_output_however_it_came_about() -> None:
    stepper = Stepper(make_info(num_blocks=5, block_size=4))
    params = {"frequency_penalty": 1.0, "bad_words_token_ids": ((1, 2),)}
    requests = [
        make_request("a", 4, max_tokens=9, resume=(7, 7)),
        make_request("b", 4, max_tokens=9, priority=1),
    ]
    stepper.submit(*(with_params(request, **params) for request in requests))
    outputs: dict[str, list[int]] = {"a": [7, 7], "b": []}
    preempted = False
    while batch := stepper.scheduler.schedule().sequences:
        for sequence in batch:
            output = outputs[sequence.request_id]
            if sequence.sampling is None:
                continue
            assert sequence.rules is not None
            history = sequence.rules.history
            assert history is not None
            counts = zip(history.output_ids, history.output_counts, strict=True)
            assert dict(counts) == Counter(output)
            preempted |= len(output) > 0 and len(sequence.token_ids) > 1
            output.append(1 + len(output) % 3)
        sampled = [outputs[s.request_id][-1] for s in batch if s.sampling is not None]
        stepper.scheduler.update(Batch(batch), StepResult(sampled))
        stepper.requests.check_integrity()
    assert preempted
    assert (len(outputs["a"]), len(outputs["b"])) == (9, 9)


def test_chunks_that_are_not_sampled_and_plain_requests_carry_no_rules() -> None:
    stepper = Stepper(max_num_batched_tokens=6)
    stepper.submit(
        with_params(make_request("a", 9), repetition_penalty=2.0),
        make_request("b", 2),
    )
    batch = stepper.scheduler.schedule()
    (first,) = batch.sequences
    assert (first.sampling, first.rules) == (None, None)
    stepper.scheduler.update(batch, stepper.runner.execute(batch))
    a, b = stepper.scheduler.schedule().sequences
    assert (a.rules is not None, b.rules) == (True, None)


def test_parameters_that_cannot_work_are_refused_at_admission() -> None:
    stepper = Stepper(eos_token_ids=(2,))
    stepper.submit(
        with_params(make_request("a", 4), min_p=2.0),
        with_params(make_request("b", 4, min_tokens=1), allowed_token_ids=(2,)),
    )
    stepper.collect()
    errors = [stepper.ends[name][0].error for name in "ab"]
    assert [error.param for error in errors if error is not None] == ["min_p", "allowed_token_ids"]


class PromptStepper(Stepper):
    """Answers with made-up log probabilities: of token t in the prompt, -t."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[tuple[str, int, tuple[int, ...]]] = []
        self.computed: list[tuple[str, int, int]] = []
        self.outputs: list[RequestOutput] = []

    def compute(self) -> bool:
        """One step; False when there is nothing to compute."""
        batch = self.scheduler.schedule()
        scores = {}
        for sequence in batch.sequences:
            end = sequence.start + len(sequence.token_ids)
            self.computed.append((sequence.request_id, sequence.start, end))
            targets = sequence.prompt_targets
            if targets is not None:
                token_ids = tuple(targets.token_ids)
                self.asked.append((sequence.request_id, sequence.start + targets.offset, token_ids))
                scores[sequence.request_id] = [score(t, -float(t)) for t in token_ids]
        self.runner.move(batch.moves)
        result = self.runner.execute(batch)
        self.scheduler.update(batch, replace(result, prompt_logprobs=scores))
        output = self.scheduler.take_output(self.scheduler.load())
        self.outputs += output.outputs if output is not None else ()
        self.requests.check_integrity()
        return bool(batch.sequences)

    def prompt_logprobs(self, request_id: str) -> list[list[int]]:
        """Tokens of each output that has log probabilities of the prompt."""
        return [
            [each.token_id for each in output.prompt_logprobs]
            for output in self.outputs
            if output.request_id == request_id and output.prompt_logprobs is not None
        ]


def scored(request: EngineRequest) -> EngineRequest:
    return with_params(request, prompt_logprobs=0)


def test_chunks_ask_for_what_follows_their_tokens_in_the_prompt() -> None:
    stepper = PromptStepper(max_num_batched_tokens=4)
    stepper.submit(scored(make_request("a", (20, 21, 22, 23, 24, 25), max_tokens=3)))
    while stepper.compute():
        pass
    assert stepper.asked == [("a", 0, (21, 22, 23, 24)), ("a", 4, (25,))]
    assert stepper.prompt_logprobs("a") == [[21, 22, 23, 24, 25]]
    with_scores = [output for output in stepper.outputs if output.prompt_logprobs is not None]
    assert [len(output.token_ids) for output in with_scores] == [1]


def test_a_prompt_of_one_token_has_no_log_probabilities() -> None:
    stepper = PromptStepper()
    stepper.submit(scored(make_request("a", (20,), max_tokens=2)))
    while stepper.compute():
        pass
    assert (stepper.asked, stepper.prompt_logprobs("a")) == ([], [])


def test_cached_blocks_are_not_used_for_a_prompt_that_is_to_be_scored() -> None:
    stepper = PromptStepper()
    prompt = tuple(range(20, 32))
    stepper.submit(make_request("warm", prompt, max_tokens=1))
    stepper.compute()
    stepper.submit(scored(make_request("a", prompt)), make_request("b", prompt))
    while stepper.compute():
        pass
    assert stepper.asked == [("a", 0, prompt[1:])]
    cached = {o.request_id: o.num_cached_tokens for o in stepper.outputs}
    assert cached == {"warm": 0, "a": 0, "b": 11}


def test_a_fork_that_is_to_be_scored_computes_its_prompt_itself() -> None:
    stepper = PromptStepper()
    prompt = tuple(range(20, 30))
    leader = make_request("a", prompt)
    stepper.submit(leader, replace(scored(leader), request_id="b", fork_of="a"))
    while stepper.compute():
        pass
    assert stepper.prompt_logprobs("b") == [list(prompt[1:])]


def test_a_preempted_prompt_is_scored_once() -> None:
    # The older request grows into the new one's blocks, one of which is still cached afterwards.
    stepper = PromptStepper(make_info(num_blocks=5, block_size=4), max_num_batched_tokens=5)
    stepper.submit(
        make_request("old", 7, max_tokens=9),
        scored(make_request("new", tuple(range(20, 29)), max_tokens=6, priority=1)),
    )
    while stepper.compute():
        pass
    assert stepper.prompt_logprobs("new") == [list(range(21, 29))]
    chunks = [(start, end) for name, start, end in stepper.computed if name == "new"]
    assert chunks[:3] == [(0, 3), (3, 7), (4, 9)]
    asked = [(start, token_ids) for name, start, token_ids in stepper.asked if name == "new"]
    assert asked == [(0, (21, 22, 23)), (3, (24, 25, 26, 27)), (7, (28,))]


def test_a_resumed_request_scores_no_prompt() -> None:
    stepper = PromptStepper()
    stepper.submit(scored(make_request("a", 8, resume=(50,))))
    while stepper.compute():
        pass
    assert stepper.asked == []


def test_kv_of_a_prompt_that_is_to_be_scored_does_not_travel() -> None:
    stepper = Stepper()
    stepper.submit(
        scored(make_request("a", 8, export=True)), scored(make_request("b", 8, await_kv=True))
    )
    stepper.collect()
    errors = [stepper.ends[name][0].error for name in "ab"]
    assert [error.param for error in errors if error is not None] == ["prompt_logprobs"] * 2


def test_a_step_may_sample_several_tokens_of_a_sequence() -> None:
    stepper = Stepper()
    stepper.submit(make_request("several", 7, max_tokens=20), make_request("one", 8, max_tokens=20))
    batch = stepper.scheduler.schedule()
    assert stepper.scheduler._kv_cache.grow(stepper.requests["several"], 4)
    stepper.scheduler.update(batch, StepResult([50, 51, 52, 60], num_sampled=(3, 1)))
    stepper.collect()
    assert stepper.tokens == {"several": [50, 51, 52], "one": [60]}
    # The KV of all but the last is stored, and fills a block of four: of each prompt as well as of the answer.
    following = [
        (s.request_id, s.start, s.token_ids) for s in stepper.scheduler.schedule().sequences
    ]
    assert following == [("several", 9, [52]), ("one", 8, [60])]
    stored = [*stepper.requests["several"].block_hashes, *stepper.requests["one"].block_hashes]
    assert set(stored) == stepper.cached and len(stored) == 4


def test_what_a_step_samples_behind_the_last_token_is_thrown_away() -> None:
    stepper = Stepper(eos_token_ids=[51])
    stepper.submit(make_request("a", 8, max_tokens=20), make_request("b", 8, max_tokens=2))
    batch = stepper.scheduler.schedule()
    for name in "ab":
        assert stepper.scheduler._kv_cache.grow(stepper.requests[name], 4)
    result = StepResult([50, 51, 52, 60, 61, 62, 63], num_sampled=(3, 4))
    stepper.scheduler.update(batch, result)
    stepper.collect()
    assert stepper.tokens == {"a": [50, 51], "b": [60, 61]}
    reasons = {name: end.finish_reason for name, (end,) in stepper.ends.items()}
    assert reasons == {"a": FinishReason.STOP, "b": FinishReason.LENGTH}
    assert stepper.num_free_blocks == 16


class NumberedBlocks:
    """Names blocks by their place, as a trace does that knows nothing of tokens."""

    def extend(
        self, hashes: list[bytes], token_ids: Sequence[int], *, salt: bytes = b"", adapter: str = ""
    ) -> None:
        hashes += [b"%16d" % index for index in range(len(hashes), len(token_ids) // 4)]


def test_blocks_may_be_named_otherwise_than_by_their_tokens() -> None:
    stepper = Stepper(hasher=NumberedBlocks())
    stepper.submit(make_request("first", 9, max_tokens=1))
    stepper.run()
    assert stepper.cached == {b"%16d" % 0, b"%16d" % 1}
    stepper.submit(make_request("other", range(30, 39), max_tokens=1))
    assert stepper.step() == [("other", 8, 1)]
