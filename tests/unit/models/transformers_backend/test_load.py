from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.config import ModelConfig
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.models.decoder import Decoder
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.transformers_backend.model import TransformersModel
from tests.unit.models.model_folder import write_model
from tests.unit.models.transformers_backend.tiny_models import make_model

WEIGHTS = "model.safetensors"
A_WEIGHT = "transformer.h.1.attn.c_proj.weight"


def load(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(str(folder), **settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2, which pagemesh has no decoder for."""
    make_model("GPT2Config", eos_token_id=7).save_pretrained(tmp_path)
    return tmp_path


def change_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def change_weights(folder: Path, **changes: torch.Tensor | None) -> Path:
    """A change to None takes the tensor away."""
    tensors: dict[str, Any] = load_file(folder / WEIGHTS) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def refusal(folder: Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **settings)
    return caught.value.message


def test_facts_of_a_loaded_model(folder: Path) -> None:
    model = load(folder)
    assert isinstance(model.decoder, TransformersModel)
    assert model.dtype == torch.float32
    assert model.max_model_len == 64
    assert model.vocab_size == 61
    assert model.eos_token_ids == (7,)
    assert model.block_layout(16) == KvLayout.uniform(16, 2, 4, 8, "float32")
    assert len(model.layer_attention) == 2
    assert len(model.fingerprint) == 32
    # What is no product is computed by torch's own code for this processor.
    release = torch.__version__.partition("+")[0]
    processor = torch.backends.cpu.get_cpu_capability().lower()
    assert model.arithmetic == f"cpu-fma-float32-torch{release}-{processor}-matmuls2"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_read_in_the_wanted_type(folder: Path, dtype: str) -> None:
    model = load(folder, dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    assert model.block_layout(16).dtype == dtype


def test_the_context_may_be_shortened_but_not_lengthened(folder: Path) -> None:
    assert load(folder, max_model_len=7).max_model_len == 7
    assert refusal(folder, max_model_len=65) == (
        "--max-model-len is 65, but the model's own context is 64"
    )


def test_pagemeshs_own_decoder_is_preferred(tmp_path: Path) -> None:
    write_model(tmp_path, model_type="llama")
    own, theirs = load(tmp_path), load(tmp_path, model_impl="transformers")
    assert isinstance(own.decoder, Decoder)
    assert isinstance(theirs.decoder, TransformersModel)
    # Their keys are rotated in another order.
    assert own.fingerprint != theirs.fingerprint


def test_pagemesh_alone_does_not_run_what_it_has_no_decoder_for(folder: Path) -> None:
    message = refusal(folder, model_impl="pagemesh")
    assert "'GPT2LMHeadModel', which pagemesh does not run itself" in message


def test_fingerprints_cover_configuration_type_and_weights(folder: Path) -> None:
    seen = {load(folder).fingerprint, load(folder, dtype="bfloat16").fingerprint}
    seen.add(load(change_config(folder, activation_function="relu")).fingerprint)
    weight = load_file(folder / WEIGHTS)[A_WEIGHT]
    seen.add(load(change_weights(folder, **{A_WEIGHT: weight + 0.5})).fingerprint)
    assert len(seen) == 4


def test_fingerprints_leave_out_who_wrote_the_file(folder: Path) -> None:
    before = load(folder).fingerprint
    assert load(change_config(folder, transformers_version="5.17.0")).fingerprint == before


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, **{A_WEIGHT: None})
    assert refusal(folder) == f"{folder} lacks the tensor {A_WEIGHT}"


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    change_weights(folder, **{A_WEIGHT: torch.zeros(32, 31)})
    assert refusal(folder) == (
        f"{folder} has the tensor {A_WEIGHT} with shape [32, 31], but config.json asks for [32, 32]"
    )


def test_a_tensor_without_a_place_is_named(folder: Path) -> None:
    change_weights(folder, **{"transformer.extra.weight": torch.zeros(3)})
    assert refusal(folder) == (
        f"{folder} has the tensor transformer.extra.weight, which config.json has no place for"
    )


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert "only as pytorch_model.bin, a pickle, which is never loaded" in refusal(folder)


def test_a_type_of_model_that_transformers_does_not_know_is_refused(folder: Path) -> None:
    change_config(folder, model_type="other", architectures=["OtherForCausalLM"])
    message = refusal(folder)
    assert message.startswith(f"{folder}/config.json cannot be read by transformers 5.")
    assert "`other`" in message


def test_a_models_own_code_is_never_run(folder: Path) -> None:
    (folder / "modeling_other.py").write_text("raise SystemExit('it ran')\n")
    change_config(
        folder,
        model_type="other",
        architectures=["OtherForCausalLM"],
        auto_map={
            "AutoConfig": "modeling_other.OtherConfig",
            "AutoModelForCausalLM": "modeling_other.OtherForCausalLM",
        },
    )
    assert "cannot be read by transformers" in refusal(folder)


def test_without_transformers_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refusal(folder) == (
        f"{folder}/config.json names an architecture that only transformers can run, which is not "
        "installed: pip install 'pagemesh[transformers]'"
    )
