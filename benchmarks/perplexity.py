"""How well does a model predict a text when its weights, or its KV, are held in fewer bits?

python benchmarks/perplexity.py [--model smollm2] [--quick] [--json FILE]
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from gguf_models import write_rounded
from report import ROOT, Report, make_parser
from safetensors.torch import save_file

from pagemesh.errors import ConfigError
from pagemesh.gguf.blocks import dequantise
from pagemesh.gguf.documents import read_file
from pagemesh.gguf.model import is_gguf, open_gguf
from pagemesh.llm import LLM, SamplingParams
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.gguf_sources import gguf_sources
from pagemesh.models.registry import find_architecture
from pagemesh.models.resolve import resolve_model_path
from pagemesh.models.tensor_files import read_headers
from pagemesh.tokenizer.tokenizer import Tokenizer

QUESTION: Final = "Perplexity of a model whose weights or KV are held in fewer bits"
TEXT: Final = ROOT / "benchmarks/data/alice.txt"
"""Chapters I and II of Lewis Carroll's book of 1865, in the public domain."""

SHA256: Final = "1c7f5bf63287214b28fd34b09f5b081de76910fbc73784f2689087f91cefa389"
WINDOW: Final = 1024
"""Tokens of each prompt. The first of it has nothing in front and is not scored."""


class Way(NamedTuple):
    """How an engine holds the model."""

    name: str
    settings: dict[str, Any]

    from_file: bool = False
    """Whether it takes the GGUF file itself, and not a checkpoint with what its weights stand for, in bfloat16."""

    rounded: bool = False
    """Whether it takes a GGUF file whose matrices are those of the file, rounded to Q8_0."""

    most: float | None = None
    """Times the perplexity in bfloat16."""


DENSE: Final = "bfloat16"

WAYS: Final = (
    Way("float32", {"dtype": "float32"}, from_file=True),
    Way(DENSE, {}),
    Way("as the file is", {}, from_file=True),
    Way("a GGUF file in Q8_0", {}, rounded=True, most=1.01),
    Way("--quantization fp8", {"quantization": "fp8"}, most=1.01),
    Way("--quantization int8", {"quantization": "int8"}, most=1.01),
    Way("--quantization int4", {"quantization": "int4"}, most=1.03),
    Way("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}, most=1.02),
    Way("--kv-cache-dtype int8", {"kv_cache_dtype": "int8"}, most=1.01),
)


def write_dense(file: Path, folder: Path) -> None:
    """The checkpoint, in bfloat16, that a GGUF file stands for; ConfigError where names or weights are no pairs."""
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text(read_file(file / name), encoding="utf-8")
    config = json.loads(read_file(file / "config.json"))
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    if architecture is None:
        raise ConfigError(f"{file} is of no architecture of pagemesh's own")
    spec, tensors = architecture.make_spec(settings), open_gguf(file).tensors
    entries, _ = read_headers(file)
    theirs, ours = gguf_sources(architecture, spec, entries), list(architecture.sources(spec))
    if len(theirs) != len(ours) or any(source.convert for source in ours):
        raise ConfigError(f"{file} has tensors that are not those of a checkpoint one by one")
    weights = {}
    for their, our in zip(theirs, ours, strict=True):
        numbers = torch.cat([*map(torch.from_numpy, dequantise(tensors[their.tensor]))])
        weight = numbers.view(tensors[their.tensor].shape)
        weight = weight if their.convert is None else their.convert(weight)
        weights[our.tensor] = weight.bfloat16().contiguous()
    save_file(weights, folder / "model.safetensors")


def windows(model: Path, quick: bool) -> list[list[int]]:
    """The text's tokens, in prompts of equal lengths; what is left at the end is left out."""
    text = TEXT.read_bytes()
    if hashlib.sha256(text).hexdigest() != SHA256:
        sys.exit(f"{TEXT} is not the text that other figures are of")
    token_ids = Tokenizer(model).encode_batch([text.decode()], add_special_tokens=False)[0]
    whole = [token_ids[at : at + WINDOW] for at in range(0, len(token_ids), WINDOW)]
    return [each for each in whole if len(each) == WINDOW][: 2 if quick else None]


def negative_logprobs(
    model: Path, settings: dict[str, Any], prompts: list[list[int]]
) -> Iterator[float]:
    """Of every scored token, in nats; ConfigError where the engine refuses its settings."""
    # The token that has to be generated is not looked at.
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(str(model), max_model_len=WINDOW + 1, **settings) as llm:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        for prompt, output in zip(
            prompts, llm.generate(asked, sampling, use_tqdm=False), strict=True
        ):
            assert output.prompt_logprobs is not None, "they were asked for"
            for token_id, position in zip(prompt[1:], output.prompt_logprobs[1:], strict=True):
                assert position is not None, "it is not the first"
                yield -position[token_id].logprob


def main() -> None:
    """Score the text in each way that the engine takes."""
    parser = make_parser("perplexity", QUESTION)
    parser.add_argument("--model", default="smollm2", help="GGUF file, folder or short name")
    options = parser.parse_args()
    refused: dict[str, str] = {}
    try:
        model = resolve_model_path(options.model)
        prompts = windows(model, options.quick)
        with tempfile.TemporaryDirectory(prefix="perplexity-") as folder:
            dense = model
            if is_gguf(model):
                dense = Path(folder)
                write_dense(model, dense)
            report = Report(
                "perplexity",
                QUESTION,
                {
                    "model": options.model,
                    "text": f"{TEXT.relative_to(ROOT)} {SHA256[:12]}",
                    "tokens": len(prompts) * WINDOW,
                    "window": WINDOW,
                    "refused": refused,
                },
            )
            rounded = Path(folder) / "rounded.gguf"
            for way in WAYS:
                if way.rounded and not is_gguf(model):
                    continue
                file = write_rounded(model, rounded) if way.rounded else model
                at = file if way.from_file or way.rounded else dense
                measure(report, way, at, prompts, refused)
    except ConfigError as error:
        sys.exit(str(error))
    report.print()
    report.write(options.json)


def measure(
    report: Report, way: Way, model: Path, prompts: list[list[int]], refused: dict[str, str]
) -> None:
    """One way's figures, or why the engine refuses it."""
    settings = {"dtype": "bfloat16", **way.settings}
    started_at = time.perf_counter()
    try:
        scores = list(negative_logprobs(model, settings, prompts))
    except ConfigError as error:
        # The checkpoint lies in a folder that is gone soon.
        refused[way.name] = str(error).replace(str(model), "MODEL")
        print(f"{way.name} is left out: {refused[way.name]}")
        return
    seconds = time.perf_counter() - started_at
    perplexity = math.exp(sum(scores) / len(scores))
    dense = report.samples(DENSE)
    aim = way.most * dense[0] if way.most and dense else None
    report.add(way.name, "", [perplexity], aim=aim)
    print(f"{way.name}: {perplexity:.3f}, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
