from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine import step_inputs
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.runner import compute_step
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, PromptTargets, ScheduledSequence, StepResult
from tests.unit.models.model_folder import break_token, write_model

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [1, 5, 2, 9, 4, 4, 0, 8]
OTHER = [3, 3, 7, 1]
TOLERANCE = 1e-5


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(ModelConfig(str(write_model(tmp_path))))


def chunk(
    prompt: list[int], start: int, end: int, block_ids: tuple[int, ...], num_top: int = 0
) -> ScheduledSequence:
    """Tokens [start, end) of a prompt whose log probabilities are all wanted."""
    targets = prompt[start + 1 : end + 1]
    return ScheduledSequence(
        f"{prompt[0]}",
        prompt[start:end],
        start,
        block_ids,
        GREEDY if end == len(prompt) else None,
        prompt_targets=PromptTargets(0, targets, num_top) if targets else None,
    )


def run(model: LoadedModel, *batches: list[ScheduledSequence]) -> list[StepResult]:
    runner = CpuRunner(model, block_size=4, num_blocks=16)
    return [compute_step(runner, Batch(sequences)) for sequences in batches]


def plain_logprobs(model: LoadedModel, prompt: list[int]) -> list[list[float]]:
    """Of every token behind each of the prompt's: from running every prefix on its own."""
    rows = []
    for end in range(1, len(prompt)):
        params = SamplingParams(temperature=0.0, logprobs=model.vocab_size)
        sequence = ScheduledSequence("r", prompt[:end], 0, (3, 1, 2), params)
        (result,) = run(model, [sequence])
        score = result.logprobs["r"]
        by_id = dict(zip(score.top_token_ids, score.top_logprobs, strict=True))
        rows.append([by_id[token_id] for token_id in range(model.vocab_size)])
    return rows


def test_a_prompts_log_probabilities_are_those_of_sampling_behind_each_token(
    model: LoadedModel,
) -> None:
    expected = plain_logprobs(model, PROMPT)
    (result,) = run(model, [chunk(PROMPT, 0, 8, (3, 1), num_top=2)])
    scores = result.prompt_logprobs["1"]
    assert [score.token_id for score in scores] == PROMPT[1:]
    for score, row in zip(scores, expected, strict=True):
        ranked = sorted(range(len(row)), key=lambda token_id: -row[token_id])
        assert score.logprob == pytest.approx(row[score.token_id], abs=TOLERANCE)
        assert score.rank == ranked.index(score.token_id) + 1
        assert list(score.top_token_ids) == ranked[:2]
    (plain,) = run(model, [ScheduledSequence("r", PROMPT, 0, (3, 1), GREEDY)])
    assert result.token_ids == plain.token_ids


def test_chunks_and_neighbours_do_not_matter(model: LoadedModel) -> None:
    (whole,) = run(model, [chunk(PROMPT, 0, 8, (3, 1))])
    (other,) = run(model, [chunk(OTHER, 0, 4, (5,))])
    first, second = run(
        model,
        [chunk(PROMPT, 0, 5, (3, 1)), chunk(OTHER, 0, 3, (5,))],
        [chunk(OTHER, 3, 4, (5,)), chunk(PROMPT, 5, 8, (3, 1))],
    )
    parts = [*first.prompt_logprobs["1"], *second.prompt_logprobs["1"]]
    for part, expected in zip(parts, whole.prompt_logprobs["1"], strict=True):
        assert (part.token_id, part.rank) == (expected.token_id, expected.rank)
        assert part.logprob == pytest.approx(expected.logprob, abs=TOLERANCE)
    assert [s.token_id for s in first.prompt_logprobs["3"]] == OTHER[1:]
    assert "3" not in second.prompt_logprobs
    assert second.token_ids == [*other.token_ids, *whole.token_ids]


def test_the_logits_of_a_prompt_are_made_in_pieces(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = run(model, [chunk(PROMPT, 0, 8, (3, 1), num_top=1)])
    monkeypatch.setattr(step_inputs, "MAX_SCORED_LOGITS", 3 * model.vocab_size + 1)
    num_rows = []
    logits = model.decoder.logits

    def counting(hidden: torch.Tensor) -> torch.Tensor:
        num_rows.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(model.decoder, "logits", counting)
    (pieces,) = run(model, [chunk(PROMPT, 0, 8, (3, 1), num_top=1)])
    assert num_rows == [3, 3, 1, 1]
    for piece, expected in zip(
        pieces.prompt_logprobs["1"], whole.prompt_logprobs["1"], strict=True
    ):
        assert (piece.token_id, piece.top_token_ids) == (expected.token_id, expected.top_token_ids)
        assert piece.logprob == pytest.approx(expected.logprob, abs=TOLERANCE)


def test_broken_logits_within_a_prompt_fail_their_own_request(model: LoadedModel) -> None:
    break_token(model, 7)
    (result,) = run(model, [chunk([3, 1, 7, 2, 2], 0, 3, (5,)), chunk(PROMPT, 0, 8, (3, 1))])
    assert {name: error.reason for name, error in result.errors.items()} == {
        "3": "LOGITS_NOT_FINITE"
    }
    assert len(result.prompt_logprobs["1"]) == 7


def test_hidden_states_are_given_beside_tokens_and_scores(model: LoadedModel) -> None:
    pooled = ScheduledSequence("pooled", PROMPT, 0, (8, 9), None, pooled=range(5, len(PROMPT)))
    sampled = ScheduledSequence("sampled", [7], 0, (10,), GREEDY)
    scored = chunk(OTHER, 0, 4, (1,))
    (mixed,) = run(model, [pooled, scored, sampled])
    (alone,) = run(model, [pooled._replace(pooled=range(len(PROMPT)))])
    assert mixed.pooled_states["pooled"].shape == (3, 8)
    assert (mixed.pooled_states["pooled"] == alone.pooled_states["pooled"][5:]).all()
    (others,) = run(model, [scored, sampled])
    assert mixed.token_ids == others.token_ids
    assert mixed.prompt_logprobs == others.prompt_logprobs
    assert list(mixed.pooled_states) == ["pooled"]


def test_hidden_states_that_are_not_finite_fail_their_own_request(tmp_path: Path) -> None:
    model = load_model(ModelConfig(str(write_model(tmp_path))))
    break_token(model, 6)
    broken = ScheduledSequence("broken", [6, 1], 0, (1,), None, pooled=range(1, 2))
    fine = ScheduledSequence("fine", [4, 1], 0, (2,), None, pooled=range(2))
    (result,) = run(model, [broken, fine])
    assert {name: error.reason for name, error in result.errors.items()} == {
        "broken": "HIDDEN_STATES_NOT_FINITE"
    }
