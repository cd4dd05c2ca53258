"""Models and requests for the paths through an engine: every way of sampling, several answers each.

Another model is another name in `SUBJECTS`, another way of sampling another entry in `SAMPLINGS`: every
test of the paths runs for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from pagemesh.config import KvCacheDtype, ModelConfig
from pagemesh.core.request import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.parameters import HOST, ModelTarget
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.identity.answers import Answers, answers_alone, assert_same
from tests.identity.byte_tokenizer import write_tokenizer
from tests.identity.checkpoints import ONE_OF_EACH, RECIPES, VOCAB_SIZE, make_checkpoint
from tests.identity.prompts import make_prompts
from tests.identity.transformers_recipes import TRANSFORMERS_RECIPES
from tests.support import quantised_checkpoints

MAX_TOKENS: Final = 12
MAX_PROMPT: Final = 100
"""Of the random models, whose context is short."""
NUM_ANSWERS: Final = 3
SEED: Final = 500

_KV_OF_8_BITS: Final[dict[str, tuple[str, KvCacheDtype]]] = {
    "Mistral, KV in FP8": ("Mistral", "fp8"),
    "Gemma 2, KV in int8": ("Gemma 2", "int8"),
    "Cohere 2, KV in FP8": ("Cohere 2", "fp8"),
}
"""Recipes, and --kv-cache-dtype."""

# Of those that transformers runs: windows and layers without positions; values that are shorter than
# keys, and experts.
SUBJECTS: Final = (
    *("demo", *ONE_OF_EACH, "Cohere 2", "DeepSeek V3", "Mistral in 4 bits", "Mistral in W8A8"),
    "GPT-OSS in MXFP4",
    *("Mixtral as fp8", "Qwen 3 as int8", "demo as int4"),
    *_KV_OF_8_BITS,
)

_QUANTISED: Final = {
    "Mistral in 4 bits": ("Mistral", quantised_checkpoints.FORMATS["AWQ, groups of 16"]),
    "Mistral in W8A8": ("Mistral", quantised_checkpoints.FORMATS["W8A8"]),
    "GPT-OSS in MXFP4": ("GPT-OSS", quantised_checkpoints.MXFP4),
}
"""Recipes, and formats of which the other matrices are random, in sizes that stay packed."""

SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": -9999, "maximum": 9999}},
    "required": ["n"],
    "additionalProperties": False,
}


def structured(outputs: StructuredOutputs) -> SamplingParams:
    return SamplingParams(temperature=1.5, structured_outputs=outputs)


SAMPLINGS: Final = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=1),
    "sampled": SamplingParams(temperature=1.7, top_p=0.98, top_k=200, ignore_eos=True),
    "penalised": SamplingParams(
        temperature=1.5,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        ignore_eos=True,
    ),
    "json": structured(StructuredOutputs.of(json=SCHEMA, disable_any_whitespace=True)),
    "regex": structured(StructuredOutputs.of(regex="[a-f]{1,4}(,[0-9]{1,3}){1,3}")),
    "choice": structured(StructuredOutputs.of(choice=["Paris", "Paris, 12", "Oslo", "no", "null"])),
    "grammar": structured(StructuredOutputs.of(grammar='root ::= "(" root ")" | [0-9]{1,3}')),
}


@dataclass(frozen=True)
class Subject:
    """A model, requests for it and their answers."""

    model: LoadedModel

    tokenizer: Tokenizer

    requests: Sequence[EngineRequest]
    """For each way of sampling and each prompt NUM_ANSWERS, which differ in their seeds."""

    expected: Answers
    """Each request alone in an engine without prefix cache, its prompt in one piece."""

    @property
    def forks(self) -> list[EngineRequest]:
        """The requests, of which those that differ in their seeds alone are forks of the first."""
        return [
            replace(request, fork_of=self.requests[index - index % NUM_ANSWERS].request_id)
            if index % NUM_ANSWERS
            else request
            for index, request in enumerate(self.requests)
        ]

    def mixture(self, last: str) -> list[EngineRequest]:
        """One request for each way of sampling; the longest prompt is sampled in the way `last`."""
        firsts = self.requests[::NUM_ANSWERS]
        num_prompts = len(firsts) // len(SAMPLINGS)
        lengths = [len(request.prompt_token_ids) for request in firsts[:num_prompts]]
        longest_first = sorted(range(num_prompts), key=lambda i: -lengths[i])
        names = [name for name in SAMPLINGS if name != last]
        requests = {request.request_id: request for request in firsts}
        chosen = [
            requests[f"{name} {longest_first[place % num_prompts]} 0"]
            for place, name in reversed([*enumerate((last, *names))])
        ]
        return sorted(chosen, key=lambda request: len(request.prompt_token_ids))

    def check(self, answers: Answers) -> None:
        """Whatever was said is what was expected."""
        assert_same(answers, self.expected)


class Material(NamedTuple):
    """What a subject is made of."""

    folder: Path
    """Of the checkpoint and its tokenizer."""

    eos_token_ids: tuple[int, ...] | None
    """Of a random model; the demo knows its own."""

    prompts: Sequence[tuple[int, ...]]

    quantization: str | None = None
    """How it is quantised while it is loaded."""

    kv_cache_dtype: KvCacheDtype = "auto"

    def load(
        self, load: Callable[[ModelConfig], LoadedModel] | None = None, **settings: Any
    ) -> LoadedModel:
        """Where `load` says, or on the CPU."""
        config = ModelConfig(str(self.folder), quantization=self.quantization, **settings)
        target = ModelTarget(HOST, self.kv_cache_dtype)
        model = load_model(config, target) if load is None else load(config)
        if self.eos_token_ids is None:
            return model
        return replace(model, eos_token_ids=self.eos_token_ids)


def make_material(name: str, demo_model: Path, folder: Path) -> Material:
    """A checkpoint, which is made in the empty folder unless it is the demo, and prompts for it."""
    name, _, quantization = name.partition(" as ")
    prompts = make_prompts(demo_model)
    # Two conversations with the same beginning, two questions, one token, and a whole block of 16.
    chosen = [prompts[24], prompts[27], prompts[0], prompts[7], prompts[40], prompts[43]]
    assert [len(prompt) for prompt in chosen[4:]] == [1, 16]
    if name == "demo":
        return Material(demo_model, None, chosen, quantization or None)
    name, kv_cache_dtype = _KV_OF_8_BITS.get(name, (name, "auto"))
    if name in _QUANTISED:
        recipe, form = _QUANTISED[name]
        sizes = {"hidden_size": 96, "intermediate_size": 96}
        wide = replace(RECIPES[recipe], settings=RECIPES[recipe].settings | sizes)
        make_checkpoint(folder / "shapes", wide)
        quantised_checkpoints.quantise(folder / "shapes", folder, folder / "floats", form)
    else:
        make_checkpoint(folder, (RECIPES | TRANSFORMERS_RECIPES)[name])
    end = write_tokenizer(folder)
    chosen = [tuple(i % VOCAB_SIZE for i in prompt[:MAX_PROMPT]) for prompt in chosen]
    return Material(folder, (end,), chosen, quantization or None, kv_cache_dtype)


def make_subject(name: str, demo_model: Path, folder: Path) -> Subject:
    """A model and what it says."""
    material = make_material(name, demo_model, folder)
    model = material.load()
    requests = make_requests(material.prompts)
    expected = answers_alone(model, requests)
    tokenizer = Tokenizer.from_file(str(material.folder / "tokenizer.json"))
    return Subject(model, tokenizer, requests, expected)


def make_requests(prompts: Sequence[tuple[int, ...]]) -> list[EngineRequest]:
    """Every way of sampling with every prompt."""
    return [
        EngineRequest(
            f"{name} {i} {answer}",
            prompt,
            replace(sampling, seed=SEED + answer, max_tokens=MAX_TOKENS, logprobs=answer % 2),
        )
        for name, sampling in SAMPLINGS.items()
        for i, prompt in enumerate(prompts)
        for answer in range(NUM_ANSWERS)
    ]
