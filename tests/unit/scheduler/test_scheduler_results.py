"""What the scheduler makes of a step's result: errors of single sequences, log probabilities."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from pagemesh.engine.interface import EngineRequest, FinishReason, RequestOutput
from pagemesh.errors import InternalError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.step_result import StepResult
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
    (first,) = stepper.scheduler.schedule().sequences
    assert (first.sampling, first.rules) == (None, None)
    stepper.step()
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
