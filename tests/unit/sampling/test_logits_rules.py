"""Edited logits against the definition in plain Python, with numbers that float32 holds exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.sampling.logits_rules import BadWords, LogitRules, make_logit_rules
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.plan import SampledRow
from tests.unit.sampling.sampled import edited_on_cpu

VOCAB_SIZE = 8
NONE = -math.inf

quarters = st.integers(-16, 16).map(lambda number: number / 4)
token_ids = st.integers(0, VOCAB_SIZE - 1)
outputs = st.lists(token_ids, max_size=12)
parameters = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        "presence_penalty": st.sampled_from([-0.5, 0.0, 1.25]),
        "frequency_penalty": st.sampled_from([-0.25, 0.0, 0.75]),
        "logit_bias": st.dictionaries(token_ids, quarters, max_size=4),
        "allowed_token_ids": st.lists(token_ids, min_size=1).map(tuple),
    },
)


def plain_logits(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """vLLM's order: allowed tokens, biases, repetition, frequency and presence penalties."""
    edited = list(logits)
    counts = Counter(output)
    for token_id in range(len(edited)):
        if params.allowed_token_ids is not None and token_id not in params.allowed_token_ids:
            edited[token_id] = NONE
        edited[token_id] += params.logit_bias.get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            penalty = params.repetition_penalty
            value = edited[token_id]
            edited[token_id] = value / penalty if value > 0 else value * penalty
        edited[token_id] -= params.frequency_penalty * counts[token_id]
        edited[token_id] -= params.presence_penalty * (counts[token_id] > 0)
    return edited


def edited(logits: list[float], *, prompt: list[int], output: list[int], **params: Any) -> Any:
    sampling = SamplingParams(**params)
    row = SampledRow("r0", sampling, 0, rules=LogitRules(sampling, prompt, output))
    return edited_on_cpu(torch.tensor([logits]), [row])[0].tolist()


def test_the_repetition_penalty_counts_prompt_and_output() -> None:
    logits = edited([4.0, -4.0, 4.0, -4.0], prompt=[0, 1], output=[3], repetition_penalty=2.0)
    assert logits == [2.0, -8.0, 4.0, -8.0]


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    logits = edited(
        [1.0, 1.0, 1.0, 1.0],
        prompt=[0, 0],
        output=[1, 2, 2],
        presence_penalty=0.5,
        frequency_penalty=2.0,
    )
    assert logits == [1.0, -1.5, -3.5, 1.0]


def test_biases_come_before_the_repetition_penalty() -> None:
    logits = edited([1.0, 1.0], prompt=[0], output=[], logit_bias={0: -3.0}, repetition_penalty=2.0)
    assert logits == [-4.0, 1.0]


def test_a_bias_does_not_lift_a_token_that_is_not_allowed() -> None:
    logits = edited(
        [1.0, 2.0, 3.0], prompt=[0], output=[], allowed_token_ids=(0, 2), logit_bias={1: 100.0}
    )
    assert logits == [1.0, NONE, 3.0]


@pytest.mark.parametrize("penalty", [1e-45, 3e38])
def test_an_extreme_penalty_leaves_finite_logits(penalty: float) -> None:
    logits = edited([5.0, -5.0, 1.0], prompt=[0, 1], output=[], repetition_penalty=penalty)
    assert all(map(math.isfinite, logits))
    assert logits[2] == 1.0


def test_forbidden_tokens_are_set_row_by_row() -> None:
    suppressed = [(1,), (), (0, 2, 0)]
    rows = [SampledRow(f"r{i}", SamplingParams(), i, ids) for i, ids in enumerate(suppressed)]
    assert edited_on_cpu(torch.zeros(3, 3), rows).tolist() == [
        [0.0, NONE, 0.0],
        [0.0, 0.0, 0.0],
        [NONE, 0.0, NONE],
    ]


@given(
    st.lists(
        st.tuples(
            st.lists(quarters, min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
            parameters,
            st.lists(token_ids, min_size=1, max_size=6),
            outputs,
            outputs,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_row_equals_the_definition_whatever_stands_beside_it(rows: list[Any]) -> None:
    tensor = torch.tensor([logits for logits, *_ in rows])
    sampled, expected = [], []
    for row, (logits, settings, prompt, resumed, added) in enumerate(rows):
        params = SamplingParams(**settings)
        expected.append(plain_logits(logits, params, prompt, resumed + added))
        rules = make_logit_rules(params, prompt, resumed)
        if rules is not None:
            for token_id in added:
                rules.add(token_id)
        sampled.append(SampledRow(f"r{row}", params, row, rules=rules))
    assert edited_on_cpu(tensor, sampled).tolist() == expected


def test_neutral_parameters_need_no_rules() -> None:
    assert make_logit_rules(SamplingParams(min_p=0.5, top_k=3, logprobs=2), [1], [2]) is None


def test_what_is_kept_grows_with_distinct_tokens_and_not_with_the_output() -> None:
    rules = LogitRules(SamplingParams(frequency_penalty=1.0), [1, 2, 3], [])
    for number in range(10_000):
        rules.add(number % 5)
    assert rules.history is not None
    assert list(rules.history.output_ids) == [0, 1, 2, 3, 4]
    assert list(rules.history.output_counts) == [2000] * 5


sequences = st.lists(st.integers(0, 2), max_size=7)
words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5)


def plain_forbidden(bad_words: list[list[int]], output: list[int]) -> set[int]:
    """The definition: a token is forbidden when some sequence would then end the output."""
    return {
        word[-1]
        for word in bad_words
        if len(word) <= len(output) + 1 and output[len(output) - len(word) + 1 :] == word[:-1]
    }


def test_a_single_token_is_always_forbidden() -> None:
    bad_words = BadWords([[5], [7], [5]], [])
    assert bad_words.forbidden_ids == (5, 7)
    bad_words.add(5)
    assert bad_words.forbidden_ids == (5, 7)


def test_a_sequence_forbids_its_last_token_behind_the_others() -> None:
    bad_words = BadWords([[1, 2, 3]], [])
    seen = [bad_words.forbidden_ids]
    for token_id in (1, 2, 2, 1, 2):
        bad_words.add(token_id)
        seen.append(bad_words.forbidden_ids)
    assert seen == [(), (), (3,), (), (), (3,)]


def test_an_output_from_elsewhere_counts() -> None:
    assert BadWords([[1, 2, 3]], [9, 1, 2]).forbidden_ids == (3,)
    assert BadWords([[1, 2, 3]], [2]).forbidden_ids == ()


@given(words, sequences, sequences)
def test_forbidden_tokens_are_those_of_the_definition(
    bad_words: list[list[int]], resumed: list[int], added: list[int]
) -> None:
    known = BadWords(bad_words, resumed)
    output = list(resumed)
    for token_id in added:
        assert set(known.forbidden_ids) == plain_forbidden(bad_words, output)
        known.add(token_id)
        output.append(token_id)
    assert set(known.forbidden_ids) == plain_forbidden(bad_words, output)
