"""Tokens are those that transformers' model and transformers' logits processors lead to.

transformers draws by torch's generator; here its distribution is drawn from by our numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.core.request import EngineRequest
from pagemesh.kernels.sampling.interface import uniform_draws
from pagemesh.models.loader import load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.checkpoints import Model, load_reference
from tests.identity.engines import Peer, generate
from tests.identity.prompts import make_prompts
from tests.support.late_imports import transformers

pytestmark = pytest.mark.costly

NUM_TOKENS: Final = 14

# Rounding moves probabilities and logits by some 1e-5; a closer choice would make this a gamble.
CLEAR_MARGIN: Final = 1e-4

BIASES: Final = {300: 6.0, 301: 6.0, 302: -100.0}
ALLOWED: Final = tuple(range(300, 340))

CASES: Final[Mapping[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top-k": {"temperature": 1.3, "top_k": 7},
    "top-p": {"temperature": 1.3, "top_p": 0.6},
    "min-p": {"temperature": 1.5, "min_p": 0.2},
    "top-k, top-p and min-p": {"temperature": 1.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.4},
    "drawn with repetition penalty": {"temperature": 0.9, "repetition_penalty": 1.2, "top_k": 50},
    "logit bias": {"temperature": 0.0, "logit_bias": BIASES},
    "drawn with logit bias": {"temperature": 0.8, "logit_bias": BIASES},
    "bad words": {"temperature": 0.0, "bad_words_token_ids": ((225,), (263, 264), (46,))},
    "few tokens allowed": {"temperature": 1.0, "allowed_token_ids": ALLOWED},
    "late end": {"temperature": 1.0, "min_tokens": 9, "stop_token_ids": tuple(range(200, 300))},
}


class Step(NamedTuple):
    token_id: int
    margin: float
    """By how much the choice was not another."""


def reference_processors(
    params: SamplingParams, num_prompt_tokens: int
) -> transformers.LogitsProcessorList:
    """What transformers has for the parameters, in vLLM's order."""
    found: list[transformers.LogitsProcessor] = []
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        found.append(transformers.PrefixConstrainedLogitsProcessor(lambda _, __: allowed, 1))
    if params.logit_bias:
        biases: list[list[list[int] | float]]
        biases = [[[token_id], bias] for token_id, bias in params.logit_bias.items()]
        found.append(transformers.SequenceBiasLogitsProcessor(biases))
    if params.repetition_penalty != 1.0:
        found.append(transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words_token_ids:
        words = [list(word) for word in params.bad_words_token_ids]
        found.append(transformers.NoBadWordsLogitsProcessor(words))
    if params.min_tokens:
        found.append(
            transformers.MinNewTokensLengthLogitsProcessor(
                num_prompt_tokens, params.min_tokens, list(params.stop_token_ids)
            )
        )
    if not params.greedy:
        found.append(transformers.TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        found.append(transformers.TopKLogitsWarper(params.top_k))
    if params.min_p > 0:
        found.append(transformers.MinPLogitsWarper(params.min_p))
    if params.top_p < 1:
        found.append(transformers.TopPLogitsWarper(params.top_p))
    return transformers.LogitsProcessorList(found)


def choose(scores: torch.Tensor, params: SamplingParams, position: int) -> Step:
    """From processed scores [vocab]."""
    if params.greedy:
        best = scores.topk(2)
        return Step(int(best.indices[0]), float(best.values[0] - best.values[1]))
    sums = scores.double().softmax(-1).cumsum(-1)
    draw = float(uniform_draws([params.seed], [position])[0])
    token_id = int(torch.searchsorted(sums, draw, right=True))
    before = float(sums[token_id - 1]) if token_id else 0.0
    return Step(token_id, min(draw - before, float(sums[token_id]) - draw))


def reference_tokens(model: Model, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    """Up to NUM_TOKENS tokens; fewer behind a stop token, and where a choice was not clear."""
    token_ids = list(prompt)
    process = reference_processors(params, len(prompt))
    while len(token_ids) < len(prompt) + NUM_TOKENS:
        # One forward pass over the known tokens each: no cache, no rules of transformers' own.
        with torch.inference_mode():
            known: Any = torch.tensor([token_ids])
            scores = process(known, model(known).logits[:, -1].float())[0]
        step = choose(scores, params, len(token_ids))
        if step.margin < CLEAR_MARGIN:
            break
        token_ids.append(step.token_id)
        if step.token_id in params.stop_token_ids:
            break
    return token_ids[len(prompt) :]


@pytest.mark.product(most=5)
@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_transformers_processors(demo_model: Path, name: str) -> None:
    reference = load_reference(demo_model)
    model = load_model(ModelConfig(str(demo_model)))
    base = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = make_prompts(demo_model)
    requests = [
        EngineRequest(f"{index}", prompts[index], replace(base, seed=index, **CASES[name]))
        for index in (0, 9, 21, 40, 43)
    ]
    tokens = generate(Peer(model, block_size=8, max_num_batched_tokens=48), requests)
    num_compared = 0
    for request in requests:
        expected = reference_tokens(reference, request.prompt_token_ids, request.sampling)
        assert list(tokens[request.request_id][: len(expected)]) == expected
        num_compared += len(expected)
    assert num_compared > 40
