from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from pagemesh.models.architectures.llama import make_llama_spec
from pagemesh.models.checkpoint import Checkpoint, fingerprint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec
from tests.unit.models.model_folder import (
    CONFIG,
    SHAPES,
    make_tensors,
    write_model,
    write_sharded_model,
)

SPEC = make_llama_spec(ConfigJson(CONFIG, "config.json"))


def identity(folder: Path, spec: DecoderSpec = SPEC, dtype: str = "float32") -> str:
    return fingerprint({"spec": dataclasses.asdict(spec)}, dtype, Checkpoint.open(folder), SHAPES)


def test_it_is_a_hex_digest_that_does_not_depend_on_the_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    digest = identity(write_model(one))
    assert len(bytes.fromhex(digest)) == 16
    assert identity(write_sharded_model(two)) == digest


def test_type_and_the_whole_spec_count(tmp_path: Path) -> None:
    write_model(tmp_path)
    layer = SPEC.layers[0]
    attention = dataclasses.replace(SPEC.attention, soft_cap=50.0)
    specs = [
        SPEC,
        dataclasses.replace(SPEC, layers=(dataclasses.replace(layer, rope=RopeSpec(5e5, 4)),)),
        dataclasses.replace(SPEC, layers=(dataclasses.replace(layer, sliding_window=9),)),
        dataclasses.replace(SPEC, layers=(LayerSpec(MlpSpec(6, "gelu_tanh"), layer.rope),)),
        dataclasses.replace(SPEC, norm=NormSpec("rms", 1e-5)),
        dataclasses.replace(SPEC, attention=attention),
        dataclasses.replace(SPEC, architecture="Other"),
    ]
    digests = {identity(tmp_path, spec) for spec in specs}
    assert len(digests | {identity(tmp_path, dtype="bfloat16")}) == 8


def test_the_first_and_the_last_bytes_of_every_tensor_count(tmp_path: Path) -> None:
    write_model(tmp_path)
    digests = {identity(tmp_path)}
    for name in SHAPES:
        for place in (0, -1):
            tensor = make_tensors()[name].clone()
            tensor.view(-1)[place] += 1
            write_model(tmp_path, make_tensors(**{name: tensor}))
            digests.add(identity(tmp_path))
    assert len(digests) == 1 + 2 * len(SHAPES)


def test_large_tensors_are_sampled_at_both_ends_only(tmp_path: Path) -> None:
    # 600 * 8 * 4 bytes; the first and last 4 KiB are the first and last 128 rows.
    digests = []
    for row in (None, 0, 127, 128, 471, 472, 599):
        embedding = torch.zeros(600, 8)
        if row is not None:
            embedding[row, -1] = 1.0
        write_model(tmp_path, make_tensors(**{"model.embed_tokens.weight": embedding}))
        digests.append(identity(tmp_path))
    plain, first, near, inner, other, far, last = digests
    assert inner == other == plain
    assert len({plain, first, near, far, last}) == 5


def test_tensors_that_the_model_does_not_use_do_not_count(tmp_path: Path) -> None:
    digest = identity(write_model(tmp_path))
    assert identity(write_model(tmp_path, make_tensors(extra=torch.ones(3)))) == digest
