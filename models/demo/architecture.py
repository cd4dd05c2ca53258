"""The shape of the demo model: a plain Llama, small but with every part that a large one has."""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from vocabulary import CONTEXT_LENGTH, END_OF_TEXT_ID, TURN_END_ID, VOCABULARY_SIZE


def demo_config() -> LlamaConfig:
    """Grouped-query attention, SwiGLU, RMSNorm, rotary positions, tied embeddings."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        hidden_act="silu",
        rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=None,
        eos_token_id=TURN_END_ID,
        pad_token_id=END_OF_TEXT_ID,
        # The stored weights are bfloat16; computing in float32 keeps greedy margins clear on CPUs.
        dtype="float32",
    )


def demo_generation_config() -> GenerationConfig:
    """Greedy, stopping at the end of a turn or, for plain completions, of a document."""
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        eos_token_id=[TURN_END_ID, END_OF_TEXT_ID],
        pad_token_id=END_OF_TEXT_ID,
    )


def new_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Fresh weights, the same for the same seed."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)
