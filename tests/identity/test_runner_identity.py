"""The runner's greedy tokens are those of transformers, however a prompt is cut, batched or stored."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.checkpoints import (
    OTHER_DTYPES,
    RECIPES,
    VOCAB_SIZE,
    Continuation,
    load_reference,
    make_checkpoint,
    prompt_logprobs,
)
from tests.identity.runner_driver import Driver, logprobs_of
from tests.identity.transformers_recipes import TRANSFORMERS_RECIPES
from tests.support.products import drawn

ALL_RECIPES = RECIPES | TRANSFORMERS_RECIPES

NUM_TOKENS = 12
PROMPT_LENGTHS: tuple[int, ...] = (1, 2, 15, 16, 17, 40, 77)
WHOLE = 1000
# Rounding moves logits by about 1e-5; a choice closer than this would make a comparison a gamble.
CLEAR_MARGIN = 2e-4
# The same rounding, in log probabilities down to -20.
LOGPROB_TOLERANCE = 1e-4
# Rounding of every activation to 8 and 11 bits; wide random weights make the most of it.
MEDIAN_ERRORS = {"bfloat16": 0.15, "float16": 0.02}


class Case(NamedTuple):
    config: ModelConfig
    model: LoadedModel
    prompts: list[list[int]]
    expected: list[list[int]]
    logprobs: list[float]
    """Of the longest prompt's tokens behind the first."""
    other_dtypes: tuple[Any, ...]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=drawn("recipes", ["demo", *ALL_RECIPES], ["demo"], 5))
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model: Path
) -> Case:
    lengths = PROMPT_LENGTHS
    max_model_len: int | None = None
    model_impl: Literal["auto", "transformers"] = "auto"
    other_dtypes: tuple[str, ...] = OTHER_DTYPES
    if request.param == "demo":
        folder, reference = demo_model, load_reference(demo_model)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        text = "\n".join(json.loads(line)["question"] for line in lines[:30])
        token_ids = tokenizer.encode(text).ids
    else:
        recipe = ALL_RECIPES[request.param]
        lengths, max_model_len = recipe.prompt_lengths, recipe.max_model_len
        model_impl = recipe.model_impl
        other_dtypes = recipe.other_dtypes
        folder = tmp_path_factory.mktemp("model")
        reference = make_checkpoint(folder, recipe)
        token_ids = random.Random(9).choices(range(VOCAB_SIZE), k=400)
    prompts = [token_ids[3 * length : 4 * length] for length in lengths]
    continuations = [Continuation(reference, prompt, NUM_TOKENS) for prompt in prompts]
    assert min(each.least_margin for each in continuations) > CLEAR_MARGIN
    expected = [each.token_ids for each in continuations]
    assert len({tuple(ids) for ids in expected}) == len(prompts)
    config = ModelConfig(str(folder), max_model_len=max_model_len, model_impl=model_impl)
    logprobs = prompt_logprobs(reference, prompts[-1])
    return Case(config, load_model(config), prompts, expected, logprobs, other_dtypes)


@pytest.mark.product
@pytest.mark.parametrize("chunk_size", [1, 5, 16, WHOLE])
def test_tokens_are_those_of_transformers_for_any_chunk_size(case: Case, chunk_size: int) -> None:
    driver = Driver(CpuRunner(case.model, block_size=16, num_blocks=64), chunk_size)
    assert driver.generate(case.prompts, NUM_TOKENS) == case.expected


def test_a_prompt_alone_gives_the_tokens_that_it_gives_in_a_batch(case: Case) -> None:
    runner = CpuRunner(case.model, block_size=16, num_blocks=64)
    alone = [Driver(runner, WHOLE).generate([prompt], NUM_TOKENS)[0] for prompt in case.prompts]
    assert alone == case.expected


@pytest.mark.product
@pytest.mark.parametrize("block_size", [1, 7])
def test_block_size_does_not_matter(case: Case, block_size: int) -> None:
    runner = CpuRunner(case.model, block_size, num_blocks=300)
    assert Driver(runner, 16).generate(case.prompts, NUM_TOKENS) == case.expected


def test_blocks_may_be_reused_in_any_order(case: Case) -> None:
    driver = Driver(CpuRunner(case.model, block_size=4, num_blocks=80), 16)
    for _ in range(2):
        assert driver.generate(case.prompts, NUM_TOKENS) == case.expected


def test_the_reference_attention_gives_the_same_tokens(case: Case) -> None:
    runner = CpuRunner(
        case.model, 16, 64, make_attention=lambda shape, device: ReferencePagedAttention(shape)
    )
    assert Driver(runner, 16).generate(case.prompts, NUM_TOKENS) == case.expected


def test_seeded_tokens_do_not_depend_on_chunks_or_batches(case: Case) -> None:
    sampling = [
        SamplingParams(temperature=0.9, top_p=0.95, top_k=60, seed=seed)
        for seed in range(len(case.prompts))
    ]
    runner = CpuRunner(case.model, block_size=16, num_blocks=64)
    together = Driver(runner, 5).generate(case.prompts, NUM_TOKENS, sampling)
    alone = [
        Driver(runner, WHOLE).generate([prompt], NUM_TOKENS, [params])[0]
        for prompt, params in zip(case.prompts, sampling, strict=True)
    ]
    assert alone == together
    assert together != case.expected


def test_log_probabilities_are_those_of_transformers(case: Case) -> None:
    assert logprobs_of(case.model, case.prompts[-1]) == pytest.approx(
        case.logprobs, abs=LOGPROB_TOLERANCE
    )


def test_log_probabilities_in_other_types_are_close(case: Case) -> None:
    for dtype in case.other_dtypes:
        model = load_model(replace(case.config, dtype=dtype))
        computed = logprobs_of(model, case.prompts[-1])
        errors = [abs(mine - theirs) for mine, theirs in zip(computed, case.logprobs, strict=True)]
        # The median: a router that rounds differently may choose another expert for a token.
        assert statistics.median(errors) < MEDIAN_ERRORS[dtype]
