"""lm-eval's harness, which asks for the log probabilities of prompts and takes its tokens from the mesh."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh import LLM, SamplingParams
from tests.ecosystem.conftest import DEMO, HERE, run
from tests.ecosystem.environments import programs_of
from tests.mesh.harness import Mesh

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

END_OF_TURN = "<|im_end|>"
TASKS = ("answers", "capitals", "sentences")


@pytest.fixture(scope="module")
def folder(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its tasks are, with what it found out about them."""
    folder = tmp_path_factory.mktemp("lm_eval")
    shutil.copytree(HERE / "lm_eval", folder, dirs_exist_ok=True)
    server = f"base_url={mesh.url}/v1/completions,model=demo,num_concurrent=2,max_length=1024"
    command = [str(programs_of("lm-eval") / "lm_eval"), "run", "--model", "local-completions"]
    command += ["--model_args", server, "--include_path", ".", "--tasks", ",".join(TASKS)]
    # Keeps what it read of the tasks' file.
    kept = str(folder / "datasets")
    run([*command, "--log_samples", "--output_path", "found"], folder, HF_HOME=kept)
    return folder


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    """The engine that the workers run."""
    with LLM(DEMO, kv_cache_memory=0.1, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def likelihood(engine: LLM) -> Callable[[str, str], float]:
    """Log probability of a text behind another one, by the engine itself."""

    def of(before: str, text: str) -> float:
        params = SamplingParams(max_tokens=1, prompt_logprobs=1)
        whole, start = engine.generate([before + text, before], params)
        assert whole.prompt_logprobs is not None
        scored = list(zip(whole.prompt_token_ids, whole.prompt_logprobs, strict=True))
        return math.fsum(
            scores[token].logprob
            for token, scores in scored[len(start.prompt_token_ids) :]
            if scores
        )

    return of


def samples(folder: Path, task: str) -> list[Any]:
    """What was asked and answered of each document of a task."""
    (file,) = (folder / "found").glob(f"*/samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_choices_have_the_engines_own_likelihoods(
    folder: Path, likelihood: Callable[[str, str], float]
) -> None:
    found = samples(folder, "capitals")
    assert [each["acc"] for each in found] == [1, 1, 1]
    for each in found:
        told = [float(value) for ((value, _),) in each["resps"]]
        start, ends = each["doc"]["start"], each["doc"]["ends"]
        assert told == pytest.approx([likelihood(start, end) for end in ends], abs=2e-4)
        greedy = [is_greedy == "True" for ((_, is_greedy),) in each["resps"]]
        assert greedy == [index == each["doc"]["right"] for index in range(len(ends))]


def test_whole_texts_have_the_engines_own_likelihoods(
    folder: Path, likelihood: Callable[[str, str], float]
) -> None:
    found = samples(folder, "sentences")
    assert len(found) == 3
    for each in found:
        ((told,),) = each["resps"]
        # It puts the token that ends a turn in front, to have a probability of the first one.
        assert float(told) == pytest.approx(likelihood(END_OF_TURN, each["target"]), abs=2e-4)


def test_answers_are_generated_up_to_what_ends_them(folder: Path) -> None:
    found = [each["resps"] for each in samples(folder, "answers")]
    assert found == [[[" Paris"]], [[" Tokyo"]], [[" Rome"]]]
