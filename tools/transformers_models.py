"""Tries every causal language model of transformers over paged KV, with a tiny random configuration.

Prints which give the same greedy tokens as transformers alone, which are refused and why. Names of
model types as arguments choose some. `docs/models.md` holds what this printed.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pagemesh.config import ModelConfig
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.errors import ConfigError
from pagemesh.models.loader import load_model
from pagemesh.models.transformers_backend.read import model_class
from tests.identity.checkpoints import spread
from tests.identity.runner_driver import Driver

VOCAB_SIZE = 131
NUM_TOKENS = 10
PROMPT_LENGTHS = (1, 7, 23, 40)
LIMIT_S = 60
# As in the identity suite: rounding moves logits by about 1e-5.
CLEAR_MARGIN = 2e-4

SMALL: dict[str, Any] = {
    "bos_token_id": 1,
    "d_model": 64,
    "eos_token_id": 2,
    "ffn_dim": 96,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 16,
    "max_position_embeddings": 256,
    "max_seq_len": 256,
    "moe_intermediate_size": 32,
    "n_embd": 64,
    "n_group": 1,
    "n_head": 4,
    "n_heads": 4,
    "n_inner": 96,
    "n_layer": 4,
    "n_layers": 4,
    "n_positions": 256,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_nextn_predict_layers": 0,
    "pad_token_id": 0,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "shared_expert_intermediate_size": 32,
    "sliding_window": 8,
    "topk_group": 1,
    "v_head_dim": 12,
    "vocab_size": VOCAB_SIZE,
    "word_embed_proj_dim": 64,
}
# What a configuration needs beyond that, or does not take.
SPECIAL: dict[str, dict[str, Any]] = {
    # Scaled logits have small margins.
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "falcon": {"head_dim": None, "alibi": True},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_text": {"attention_chunk_size": 64},
    "xlstm": {"v_head_dim": None},
}


def make_config(model_type: str) -> Any:
    """The type's configuration, made small; None for what is part of a model with other inputs."""
    config_class: Callable[..., Any] = transformers.CONFIG_MAPPING[model_type]
    default = config_class()
    if default.get_text_config(decoder=True) is not default:
        return None
    known = default.to_dict()
    values = {key: value for key, value in SMALL.items() if key in known}
    aliases = getattr(config_class, "attribute_map", {})
    values = {key: value for key, value in values.items() if aliases.get(key) not in values}
    if "kv_lora_rank" in values:
        # Multi-head latent attention: every head has keys of its own, of which a part turns.
        values |= {"num_key_value_heads": 4, "head_dim": values["qk_rope_head_dim"]}
    for key in ("layer_types", "mlp_layer_types"):
        if known.get(key):
            values[key] = (list(dict.fromkeys(known[key])) * 4)[:4]
    special = SPECIAL.get(model_type, {})
    values = {key: value for key, value in (values | special).items() if value is not None}
    return config_class(**values)


def try_model(model_type: str) -> str:
    """One line about a model type."""
    config = make_config(model_type)
    if config is None:
        return "skipped: has other inputs too"
    cls = model_class(config)
    assert cls is not None
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        made = cls(config)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                spread(name, parameter)
        made.save_pretrained(folder)
        # What transformers makes of the folder: some models change weights as they are read (Youtu
        # zeroes the padding token's), so that the model in memory is another one.
        reference = cls.from_pretrained(folder).eval()
        model = load_model(ModelConfig(folder, model_impl="transformers", max_model_len=256))
    prompts = [random.Random(9 + n).choices(range(3, VOCAB_SIZE), k=n) for n in PROMPT_LENGTHS]
    ours = Driver(CpuRunner(model, 16, 32), chunk_size=5).generate(prompts, NUM_TOKENS)
    if model_class(config)._can_set_attn_implementation():  # type: ignore[union-attr]
        reference.set_attn_implementation("eager")
    answers = [continuation(reference, prompt) for prompt in prompts]
    theirs = [token_ids for token_ids, _ in answers]
    if ours != theirs:
        return "OTHER TOKENS"
    # Equal tokens say little where models hardly prefer them, or say the same to every prompt.
    margin = min(least_margin for _, least_margin in answers)
    if margin < CLEAR_MARGIN or len({tuple(token_ids) for token_ids in theirs}) < len(prompts):
        return f"UNDECIDED: same tokens, but a least margin of {margin:.1e} or equal answers"
    return "same tokens"


def continuation(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Greedy tokens by whole forward passes without any cache, and the least lead of one of them."""
    token_ids, margins = list(prompt), []
    for _ in range(NUM_TOKENS):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]
        best = logits.topk(2).values
        margins.append(float(best[0] - best[1]))
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt) :], min(margins)


@contextmanager
def time_limit() -> Iterator[None]:
    """Give up on models that are slow to make."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"takes longer than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)


def main(wanted: list[str]) -> None:
    """Try the wanted model types, or all."""
    warnings.simplefilter("ignore")
    terminal: Any = transformers.logging
    terminal.set_verbosity(logging.CRITICAL)
    terminal.disable_progress_bar()
    torch.set_num_threads(1)
    for model_type in wanted or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            with time_limit():
                result = try_model(model_type)
        except ConfigError as error:
            result = f"refused: {error}"
        except Exception as error:
            # Whatever a configuration does not like about being small.
            result = f"not tried: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        print(f"{model_type}: {result}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
