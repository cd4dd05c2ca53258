"""Requests for the demo model: plain ones, all sampling parameters, and structured outputs of every kind."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tokenizers import Tokenizer

from pagemesh.core.request import EngineRequest
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.identity.engines import Peer, generate
from tests.identity.prompts import make_prompts

NUM_PLAIN_PROMPTS: Final = 44
NUM_PLAIN_TOKENS: Final = 16
GREEDY: Final = SamplingParams(temperature=0.0, max_tokens=NUM_PLAIN_TOKENS, ignore_eos=True)
SAMPLED: Final = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, max_tokens=NUM_PLAIN_TOKENS)

SAMPLING_BASE: Final = SamplingParams(max_tokens=14, ignore_eos=True)

SAMPLING_KINDS: Final[dict[str, dict[str, Any]]] = {
    "greedy with repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.4},
    "greedy with output penalties": {
        "temperature": 0.0,
        "presence_penalty": 2.0,
        "frequency_penalty": 1.5,
    },
    "sampled with all penalties": {
        "temperature": 0.9,
        "top_k": 50,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.4,
    },
    "sampled with min-p": {"temperature": 1.5, "min_p": 0.1, "top_p": 0.95},
    "sampled with biases": {"temperature": 0.8, "logit_bias": {300: 12.0, 301: 12.0, 302: -100.0}},
    "greedy with bad words": {"temperature": 0.0, "bad_words_token_ids": ()},
    "few tokens allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(300, 340))},
    "stop tokens suppressed": {"temperature": 1.0, "min_tokens": 9, "ignore_eos": False},
}

NUM_STRUCTURED_PROMPTS: Final = 5
NUM_STRUCTURED_TOKENS: Final = 32

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Vienna"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
PATTERN: Final = r"[A-Z][a-z]{2,6}( is [a-z]{2,5}){1,3}\."

STRUCTURED_KINDS: Final[dict[str, dict[str, Any]]] = {
    "json": {"structured_outputs": StructuredOutputs.of(json=SCHEMA, disable_any_whitespace=True)},
    "greedy json": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputs.of(json=SCHEMA, disable_any_whitespace=True),
    },
    "any object": {"structured_outputs": StructuredOutputs.of(json_object=True)},
    "regex": {"structured_outputs": StructuredOutputs.of(regex=PATTERN), "top_p": 0.9},
    "greedy regex": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputs.of(regex=PATTERN),
    },
    "choice": {
        "temperature": 3.0,
        "structured_outputs": StructuredOutputs.of(choice=["Paris", "Paris, France", "Oslo"]),
    },
    "grammar": {
        "structured_outputs": StructuredOutputs.of(grammar='root ::= "(" root ")" | [0-9]{1,3}'),
    },
    "late end": {"structured_outputs": StructuredOutputs.of(regex="a+"), "min_tokens": 7},
    "ignored end": {"structured_outputs": StructuredOutputs.of(regex="b{1,9}"), "ignore_eos": True},
    "penalised": {
        "structured_outputs": StructuredOutputs.of(regex="[a-d]+"),
        "logit_bias": {70: 9.0},
    },
    "free": {},
}


def plain_requests(model: LoadedModel) -> list[EngineRequest]:
    """Greedy and sampled, with prompts of one token to some hundred."""
    prompts = make_prompts(model.folder)
    assert len(prompts) == NUM_PLAIN_PROMPTS
    assert (min(map(len, prompts)), max(map(len, prompts)) > 200) == (1, True)
    greedy = [EngineRequest(f"greedy {i}", p, GREEDY) for i, p in enumerate(prompts)]
    sampled = [
        EngineRequest(f"sampled {i}", p, replace(SAMPLED, seed=1000 + i))
        for i, p in enumerate(prompts)
    ]
    return [*greedy, *sampled]


def sampling_requests(model: LoadedModel) -> list[EngineRequest]:
    """Every kind with prompts of 1 to some hundred tokens, half of which share a prefix."""
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    text = (model.folder / "questions.jsonl").read_text(encoding="utf-8")
    token_ids = tuple(tokenizer.encode(text[:4000]).ids)
    lengths = random.Random(7)
    requests = []
    for number, (name, params) in enumerate(SAMPLING_KINDS.items()):
        for index, length in enumerate((1, 16, lengths.randint(20, 60), lengths.randint(90, 230))):
            start = 0 if index % 2 else 11 * number
            prompt = token_ids[start : start + length]
            sampling = replace(
                SAMPLING_BASE,
                seed=100 * number + index,
                logprobs=index,
                **_with_bad_words(model, prompt, params),
            )
            requests.append(EngineRequest(f"{name} {index}", prompt, sampling))
    return requests


def _with_bad_words(
    model: LoadedModel, prompt: tuple[int, ...], params: dict[str, Any]
) -> dict[str, Any]:
    """Forbid what the model would say: its second token, and its fifth behind its fourth."""
    if "bad_words_token_ids" not in params:
        return params
    greedy = EngineRequest("r", prompt, replace(SAMPLING_BASE, temperature=0.0))
    tokens = generate(Peer(model), [greedy])["r"]
    return params | {"bad_words_token_ids": ((tokens[1],), tokens[3:5])}


def structured_requests(model: LoadedModel) -> list[EngineRequest]:
    """Every kind with questions alone and as conversations that share prefixes."""
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    lines = (model.folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [
        f"<|im_start|>user\n{json.loads(line)['question']}<|im_end|>\n<|im_start|>assistant\n"
        for line in lines
    ]
    prompts = [
        tuple(tokenizer.encode(text).ids)
        for text in (turns[0], turns[1], *("".join(turns[:count]) for count in (3, 5, 9)))
    ]
    assert len(prompts) == NUM_STRUCTURED_PROMPTS
    return [
        EngineRequest(
            f"{name} {index}",
            prompt,
            replace(SamplingParams(max_tokens=NUM_STRUCTURED_TOKENS, seed=17 * index), **params),
        )
        for name, params in STRUCTURED_KINDS.items()
        for index, prompt in enumerate(prompts)
    ]


DEMO_REQUESTS: Final[dict[str, Callable[[LoadedModel], list[EngineRequest]]]] = {
    "plain": plain_requests,
    "sampling parameters": sampling_requests,
    "structured": structured_requests,
}
