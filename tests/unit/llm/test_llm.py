"""`LLM` with the demo model: text in, text out."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh.errors import (
    ConfigError,
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    PagemeshError,
    UnavailableError,
    UnsupportedError,
)
from pagemesh.llm import LLM, RequestOutput, SamplingParams, StructuredOutputs
from pagemesh.llm.outputs import without_failures
from pagemesh.llm.prompts import Prompt
from tests.unit.gguf.small_file import write_small
from tests.unit.models.model_folder import write_model

GREEDY = SamplingParams(temperature=0)
FRANCE = "The capital of France is"


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    with LLM(demo_model, kv_cache_memory=0.02, threads=1) as llm:
        yield llm


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [answer.text for output in outputs for answer in output.outputs]


def test_a_prompt_is_answered(llm: LLM) -> None:
    (output,) = llm.generate(FRANCE, GREEDY, use_tqdm=False)
    assert output.prompt == FRANCE
    assert output.prompt_token_ids == (288, 284, 270, 1362, 266)
    (answer,) = output.outputs
    assert (answer.index, answer.text) == (0, " Paris.")
    assert answer.token_ids == (1823, 16, 0)
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert output.error is None


def test_an_answer_looks_like_what_was_asked_for(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    params = [
        SamplingParams(temperature=0, structured_outputs=StructuredOutputs.of(json=schema)),
        SamplingParams(n=2, seed=1, structured_outputs=StructuredOutputs.of(regex="[0-9]{3}")),
        SamplingParams(structured_outputs=StructuredOutputs.of(regex="(")),
    ]
    outputs = llm.generate([FRANCE] * 3, params, use_tqdm=False)
    assert json.loads(outputs[0].outputs[0].text) in ({"city": "Paris"}, {"city": "Rome"})
    numbers = [answer.text for answer in outputs[1].outputs]
    assert all(len(number) == 3 and number.isdecimal() for number in numbers)
    assert isinstance(outputs[2].error, InvalidRequestError)
    assert outputs[2].error.param == "structured_outputs"


def test_outputs_have_the_order_of_the_prompts(llm: LLM) -> None:
    capitals = {"France": " Paris.", "Italy": " Rome.", "Japan": " Tokyo."}
    prompts = [f"The capital of {country} is" for country in capitals]
    assert texts(llm.generate(prompts, GREEDY, use_tqdm=False)) == list(capitals.values())


def test_conversations_are_answered(llm: LLM) -> None:
    who = [{"role": "user", "content": "Who are you?"}]
    sum_ = [{"role": "user", "content": "What is 3 + 9?"}]
    params = [
        SamplingParams(temperature=0, stop=" a "),
        SamplingParams(temperature=0, stop_token_ids=[313]),
    ]
    first, second = llm.chat([who, sum_], params, use_tqdm=False)
    assert texts([first, second]) == ["I am pagemesh demo,", "3"]
    assert [first.outputs[0].stop_reason, second.outputs[0].stop_reason] == [" a ", 313]
    assert texts(llm.chat(sum_, GREEDY, use_tqdm=False)) == ["3 + 9 = 12."]


def test_answers_equal_separate_requests_with_the_following_seeds(llm: LLM) -> None:
    def generate(seed: int, n: int) -> list[str]:
        return texts(llm.generate("Once upon", SamplingParams(n=n, seed=seed), use_tqdm=False))

    answers = generate(3, 4)
    assert len(set(answers)) > 1
    assert answers == [generate(3 + i, 1)[0] for i in range(4)]


def test_bad_words_are_not_generated(llm: LLM) -> None:
    (plain,) = texts(llm.generate("Once upon", GREEDY, use_tqdm=False))
    assert " a time" in plain
    params = SamplingParams(temperature=0, bad_words=["time"])
    (other,) = texts(llm.generate("Once upon", params, use_tqdm=False))
    assert "time" not in other


def test_log_probabilities_are_those_of_the_engine(llm: LLM) -> None:
    params = SamplingParams(temperature=0, logprobs=2)
    (answer,) = llm.generate(FRANCE, params, use_tqdm=False)[0].outputs
    assert answer.logprobs is not None
    assert [next(iter(position)) for position in answer.logprobs] == list(answer.token_ids)
    assert [
        position[token_id].rank
        for position, token_id in zip(answer.logprobs, answer.token_ids, strict=True)
    ] == [1, 1, 1]
    assert answer.logprobs[0][1823].decoded_token == " Paris"
    assert answer.cumulative_logprob == pytest.approx(
        sum(p[i].logprob for p, i in zip(answer.logprobs, answer.token_ids, strict=True))
    )
    assert all(len(position) == 2 for position in answer.logprobs)


def test_the_best_of_several_answers_are_given_best_first(llm: LLM) -> None:
    common = {"temperature": 1.5, "seed": 3, "max_tokens": 12}
    params = SamplingParams(n=4, logprobs=0, **common)  # type: ignore[arg-type]
    (every,) = llm.generate("Once upon", params, use_tqdm=False)
    ranked = sorted(every.outputs, key=lambda answer: -(answer.cumulative_logprob or 0))
    assert ranked[0].token_ids != every.outputs[0].token_ids, "the test would check nothing"
    params = SamplingParams(n=2, best_of=4, **common)  # type: ignore[arg-type]
    (best,) = llm.generate("Once upon", params, use_tqdm=False)
    assert [answer.token_ids for answer in best.outputs] == [a.token_ids for a in ranked[:2]]
    assert [answer.index for answer in best.outputs] == [0, 1]
    assert [answer.logprobs for answer in best.outputs] == [None, None]
    assert best.outputs[0].cumulative_logprob == ranked[0].cumulative_logprob


def test_the_prompts_log_probabilities_leave_out_its_first_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0, n=2, prompt_logprobs=1)
    (output,) = llm.generate(FRANCE, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    given = [next(iter(position)) for position in output.prompt_logprobs[1:] if position]
    assert tuple(given) == output.prompt_token_ids[1:]


def test_an_answer_looks_as_it_was_told_to(llm: LLM) -> None:
    params = SamplingParams(temperature=0, structured_outputs={"choice": ["Rome", "Oslo"]})
    assert texts(llm.generate("The capital of Norway is ", params, use_tqdm=False))[0] in (
        "Rome",
        "Oslo",
    )


def test_a_form_that_cannot_be_compiled_costs_its_own_prompt_alone(llm: LLM) -> None:
    broken = SamplingParams(structured_outputs={"regex": "("})
    bad, good = llm.generate([FRANCE, FRANCE], [broken, GREEDY], use_tqdm=False)
    assert isinstance(bad.error, InvalidRequestError)
    assert bad.outputs[0].finish_reason == "error"
    assert good.outputs[0].text == " Paris."


def test_without_a_seed_answers_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=2.0, max_tokens=32)
    outputs = llm.generate(["Once upon"] * 2, params, use_tqdm=False)
    assert len(set(texts(outputs))) == 2


def test_seeds_of_prompts_that_bring_none_come_from_that_of_the_llm(demo_model: Path) -> None:
    def answers(seed: int) -> list[str]:
        with LLM(demo_model, device="cpu", seed=seed) as llm:
            params = SamplingParams(temperature=1.5)
            return texts(llm.generate(["Once upon", "Once upon"], params, use_tqdm=False))

    first, again, other = answers(7), answers(7), answers(8)
    assert first == again != other
    assert first[0] != first[1], "each has one of its own"


def test_without_parameters_the_models_own_hold(llm: LLM, demo_model: Path) -> None:
    own = json.loads((demo_model / "generation_config.json").read_text())
    assert own["do_sample"] is False
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=16)
    assert texts(llm.generate(FRANCE, use_tqdm=False)) == [" Paris."]


@pytest.mark.parametrize(
    ("prompts", "kind", "complaint"),
    [
        (["ok", ""], InvalidRequestError, "prompts[1]: prompt_token_ids is empty"),
        ([[5], [99_999]], InvalidRequestError, "prompts[1]: prompt_token_ids contains 99999, but"),
        ([[5], [6], [7] * 2048], ContextLengthError, "prompts[2]: the prompt has 2048 tokens, but"),
    ],
)
def test_a_prompt_that_can_never_run_is_named_before_anything_runs(
    llm: LLM, prompts: list[str], kind: type[InvalidRequestError], complaint: str
) -> None:
    before = llm._engine.load()
    with pytest.raises(kind) as refusal:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert refusal.value.message.startswith(complaint)
    assert llm._engine.load() is before


def test_numbers_of_parameters_and_priorities_must_fit(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params has 3 entries, but there are 2"):
        llm.generate(["a", "b"], [GREEDY] * 3, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="priority has 1 entries, but there are 2"):
        llm.generate(["a", "b"], GREEDY, priority=[1], use_tqdm=False)


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_several_threads_get_their_own_answers(llm: LLM) -> None:
    capitals = {"France": " Paris.", "Italy": " Rome.", "Japan": " Tokyo."}
    got: dict[str, list[str]] = {}

    def ask(country: str) -> None:
        prompts = [f"The capital of {country} is"] * 3
        got[country] = texts(llm.generate(prompts, GREEDY, use_tqdm=False))

    threads = [threading.Thread(target=ask, args=(country,)) for country in capitals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {country: [text] * 3 for country, text in capitals.items()}


def test_the_bar_counts_prompts_and_tokens(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate([FRANCE] * 3, GREEDY)
    bar = capfd.readouterr().err
    assert "Processed prompts: 100%" in bar
    assert "3/3" in bar
    assert "tokens/s in" in bar
    llm.generate([FRANCE] * 3, GREEDY, use_tqdm=False)
    assert capfd.readouterr().err == ""


def test_after_close_nothing_is_answered(demo_model: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(demo_model, kv_cache_memory=0.02, max_model_len=64)
    llm.close()
    llm.close()
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        llm.generate("a", use_tqdm=False)
    assert set(threading.enumerate()) <= before


def test_an_llm_that_is_forgotten_stops(demo_model: Path) -> None:
    llm = LLM(demo_model, kv_cache_memory=0.02, max_model_len=64)
    llm.generate("a", use_tqdm=False)
    engine = llm._engine
    del llm
    gc.collect()
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        engine.pin("p", []).result(0)


def make_output(request_id: str, error: PagemeshError | None) -> RequestOutput:
    return RequestOutput(request_id, None, (1,), (), 0, error=error)


def test_failures_are_kept_beside_answers_but_raised_when_there_are_none() -> None:
    failure = InternalError("the logits of request b are not finite")
    good, bad = make_output("a", None), make_output("b", failure)
    assert without_failures([good, bad]) == [good, bad]
    assert without_failures([]) == []
    with pytest.raises(InternalError, match="not finite"):
        without_failures([bad, make_output("c", InternalError("other"))])


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        LLM(tmp_path)


@pytest.mark.parametrize("load_format", ["auto", "gguf"])
def test_a_gguf_file_is_named_as_for_vllm(load_format: str, tmp_path: Path) -> None:
    write_small(tmp_path / "small.gguf")
    with LLM(
        tmp_path, load_format=load_format, gguf_file="small.gguf", kv_cache_memory=0.01, threads=1
    ) as llm:
        (output,) = llm.generate("abc", SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"load_format": "safetensors", "gguf_file": "small.gguf"},
            "--load-format is safetensors, but {folder}/small.gguf/config.json names a checkpoint quantised by gguf",
        ),
        ({"load_format": "gguf"}, "--load-format is gguf, but {folder}/config.json names a checkpoint that"),
        ({"load_format": "dummy"}, "--load-format is 'dummy', but must be one of auto, safetensors, "),
        ({"gguf_file": "b.gguf"}, "--gguf-file is 'b.gguf', but the folder {folder} has no such GGUF file"),
    ],
)  # fmt: skip
def test_a_model_must_be_what_settings_of_vllm_call_it(
    settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_model(tmp_path)
    write_small(tmp_path / "small.gguf")
    with pytest.raises(ConfigError) as refusal:
        LLM(tmp_path, **settings)
    assert refusal.value.message.startswith(told.format(folder=tmp_path))


def test_a_model_without_chat_template_says_so(demo_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(demo_model / name)
    with (
        LLM(tmp_path, kv_cache_memory=0.02, max_model_len=64) as llm,
        pytest.raises(UnsupportedError, match="no chat template"),
    ):
        llm.chat([{"role": "user", "content": "Hello!"}], use_tqdm=False)


PROGRAM = """
import sys
import pagemesh.llm
assert "torch" not in sys.modules and "LLM" in dir(pagemesh.llm)
from pagemesh.llm import LLM, SamplingParams
llm = LLM(sys.argv[1], kv_cache_memory=0.02)
print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)
"""


def test_a_program_that_closes_nothing_ends_cleanly(demo_model: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(demo_model)], capture_output=True, text=True, timeout=60
    )
    assert completed.stdout == " Paris.\n"
    assert "Error" not in completed.stderr
    assert completed.returncode == 0


def test_prompts_are_embedded_in_their_order(llm: LLM) -> None:
    prompts: list[Prompt] = [FRANCE, [288, 284, 270, 1362, 266], "Once upon a time"]
    text, ids, other = llm.embed(prompts, use_tqdm=False)
    assert (text.prompt, ids.prompt) == (FRANCE, None)
    assert text.prompt_token_ids == ids.prompt_token_ids
    assert text.outputs.embedding == ids.outputs.embedding
    assert text.outputs.embedding != other.outputs.embedding
    for output in (text, other):
        assert math.hypot(*output.outputs.embedding) == pytest.approx(1.0, abs=1e-6)
        assert output.error is None


def test_a_prompt_that_cannot_be_embedded_is_named(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=r"prompts\[1\]: the prompt has 5000 tokens"):
        llm.embed([[5], [5] * 5000], use_tqdm=False)


def test_embedding_on_a_closed_engine_raises(demo_model: Path) -> None:
    with LLM(demo_model, kv_cache_memory=0.02, threads=1) as closed:
        pass
    with pytest.raises(UnavailableError):
        closed.embed("x", use_tqdm=False)
