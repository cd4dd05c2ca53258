"""The demo model under constraints: what it writes is what was asked for."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from tokenizers import Tokenizer

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.core.engine import Engine
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.loading.engine import load_engine
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.fakes.inbox import Inbox

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


class Place(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    city: Annotated[str, pydantic.Field(min_length=1, max_length=8)]
    kind: Literal["capital", "town", "village"]
    people: Annotated[int, pydantic.Field(ge=1, le=9_000_000)]


class Report(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    places: Annotated[list[Place], pydantic.Field(min_length=1, max_length=2)]
    sure: bool
    source: Annotated[str, pydantic.Field(max_length=8)] | None


@dataclass
class Asker:
    """Asks a running engine one question with many parameters."""

    engine: Engine
    tokenizer: Tokenizer
    inbox: Inbox = field(default_factory=Inbox)
    num_requests: int = 0

    def submit(self, sampling: SamplingParams) -> str:
        self.num_requests += 1
        prompt = tuple(self.tokenizer.encode(QUESTION).ids)
        request = EngineRequest(str(self.num_requests), prompt, sampling)
        self.engine.submit(request)
        return request.request_id

    def ask(self, num_seeds: int, structured: StructuredOutputs | None, **params: Any) -> list[str]:
        """Texts for as many seeds, generated together; all ended by an end of sequence."""
        sampling = SamplingParams(
            **{"temperature": 1.0, "max_tokens": 600, "structured_outputs": structured} | params
        )
        ids = [self.submit(dataclasses.replace(sampling, seed=seed)) for seed in range(num_seeds)]
        for request_id in ids:
            self.inbox.wait_for_end(request_id)
            end = self.inbox.ends[request_id]
            assert (end.finish_reason, end.error) == (FinishReason.STOP, None)
            assert self.inbox.tokens[request_id][-1] in (0, 2)
        return [self.text(request_id) for request_id in ids]

    def text(self, request_id: str) -> str:
        return str(self.tokenizer.decode(self.inbox.tokens[request_id]))


@pytest.fixture(scope="module")
def asker(demo_model: Path) -> Iterator[Asker]:
    engine = load_engine(ModelConfig(str(demo_model)), CacheConfig(), SchedulerConfig())
    asker = Asker(engine, Tokenizer.from_file(str(demo_model / "tokenizer.json")))
    engine.start(asker.inbox)
    yield asker
    engine.stop()
    assert engine.load().num_free_blocks == engine.info.num_blocks


def test_answers_are_what_the_schema_describes(asker: Asker) -> None:
    schema = Report.model_json_schema()
    texts = asker.ask(20, StructuredOutputs.of(json=schema, disable_any_whitespace=True))
    for text in texts:
        Report.model_validate_json(text)
    assert len(set(texts)) == 20


@pytest.mark.parametrize("compact", [True, False])
def test_json_has_the_whitespace_that_was_asked_for(asker: Asker, compact: bool) -> None:
    schema = {"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 2}
    texts = asker.ask(8, StructuredOutputs.of(json=schema, disable_any_whitespace=compact))
    shortest = [json.dumps(json.loads(text), separators=(",", ":")) for text in texts]
    assert (texts == shortest) == compact


def test_any_json_object_is_one(asker: Asker) -> None:
    # So hot, some of this model's strings never end.
    structured = StructuredOutputs.of(json_object=True)
    sampling = SamplingParams(temperature=1.5, max_tokens=24, structured_outputs=structured)
    ids = [asker.submit(dataclasses.replace(sampling, seed=seed)) for seed in range(16)]
    asker.inbox.wait_for_end(*ids)
    ended = [i for i in ids if asker.inbox.ends[i].finish_reason is FinishReason.STOP]
    assert 4 < len(ended) < 16
    assert all(isinstance(json.loads(asker.text(request_id)), dict) for request_id in ended)
    assert all(asker.text(request_id).startswith("{") for request_id in ids)


def test_answers_match_the_expression(asker: Asker) -> None:
    pattern = r"[A-Z][a-z]{2,9} (19|20)\d\d(, [a-zé]{1,4}){0,3}"
    texts = asker.ask(20, StructuredOutputs.of(regex=pattern))
    assert [text for text in texts if not re.fullmatch(pattern, text)] == []
    assert len(set(texts)) > 10


def test_answers_are_one_of_the_choices(asker: Asker) -> None:
    choices = ["Paris", "Paris, France", "Rome", "né\n"]
    texts = asker.ask(40, StructuredOutputs.of(choice=choices), temperature=20.0)
    assert set(texts) == set(choices)


def test_answers_follow_the_grammar(asker: Asker) -> None:
    grammar = 'root ::= term ("+" term){1,4}\nterm ::= [0-9]{1,3} | "(" root ")"'
    for text in asker.ask(10, StructuredOutputs.of(grammar=grammar), temperature=0.7):
        assert eval(text) >= 0
        assert re.fullmatch(r"[0-9+()]+", text)


def test_greedy_answers_are_constrained_as_well(asker: Asker) -> None:
    free, bound = (
        asker.ask(1, structured, temperature=0.0)[0]
        for structured in (
            None,
            StructuredOutputs.of(regex=r"The capital of \w+ is not [a-z]{4}\."),
        )
    )
    assert free == "The capital of France is Paris."
    assert re.fullmatch(r"The capital of France is not [a-z]{4}\.", bound)


def test_an_output_goes_on_for_min_tokens_where_it_can(asker: Asker) -> None:
    for pattern, min_tokens in (("a+", 9), ("ab?", 9)):
        structured = StructuredOutputs.of(regex=pattern)
        (text,) = asker.ask(1, structured, min_tokens=min_tokens)
        assert re.fullmatch(pattern, text)
        num_tokens = len(asker.inbox.tokens[str(asker.num_requests)])
        assert num_tokens > min_tokens if pattern == "a+" else num_tokens <= 3


def test_an_output_without_end_of_sequence_ends_where_nothing_can_follow(asker: Asker) -> None:
    (text,) = asker.ask(1, StructuredOutputs.of(regex="a{3,20}"), ignore_eos=True)
    assert text == "a" * 20


def test_a_bad_schema_and_a_free_request_in_one_batch(asker: Asker) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=12)
    schemas = [None, {"type": "string", "maxLength": 5}, {"type": "nothing"}, {"enum": [17]}]
    ids = [
        asker.submit(
            dataclasses.replace(
                sampling,
                structured_outputs=None if schema is None else StructuredOutputs.of(json=schema),
            )
        )
        for schema in schemas
    ]
    asker.inbox.wait_for_end(*ids)
    assert asker.text(ids[0]) == "The capital of France is Paris."
    assert len(json.loads(asker.text(ids[1]))) <= 5
    assert asker.text(ids[3]) == "17"
    error = asker.inbox.ends[ids[2]].error
    assert isinstance(error, InvalidRequestError)
    assert error.param == "structured_outputs"
    assert "Invalid type: nothing" in error.message
    assert asker.inbox.tokens[ids[2]] == []


def test_parameters_that_exclude_the_output_end_the_request_alone(asker: Asker) -> None:
    structured = StructuredOutputs.of(choice=["yes"])
    stuck = asker.submit(SamplingParams(allowed_token_ids=(5,), structured_outputs=structured))
    assert asker.ask(1, structured) == ["yes"]
    asker.inbox.wait_for_end(stuck)
    error = asker.inbox.ends[stuck].error
    assert error is not None
    assert isinstance(error, InvalidRequestError)
    assert (error.reason, error.param) == ("NO_TOKEN_ALLOWED", "structured_outputs")
    assert error.message.startswith(
        "together, structured_outputs, allowed_token_ids leave no token"
    )


def test_a_model_folder_without_tokenizer_refuses_structured_output_alone(
    demo_model: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(demo_model / name, tmp_path)
    engine = load_engine(ModelConfig(str(tmp_path)), CacheConfig(), SchedulerConfig())
    asker = Asker(engine, Tokenizer.from_file(str(demo_model / "tokenizer.json")))
    engine.start(asker.inbox)
    refused = asker.submit(
        SamplingParams(structured_outputs=StructuredOutputs.of(json_object=True))
    )
    assert asker.ask(1, None, temperature=0.0) == ["The capital of France is Paris."]
    asker.inbox.wait_for_end(refused)
    engine.stop()
    error = asker.inbox.ends[refused].error
    assert isinstance(error, UnsupportedError)
    assert re.search("structured output needs .*tokenizer.json", error.message)
