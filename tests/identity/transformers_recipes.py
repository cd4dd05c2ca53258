"""Checkpoints of architectures that transformers runs, one for each thing that its attention may need."""

from __future__ import annotations

from tests.identity.checkpoints import GQA, MOE, RECIPES, Recipe

TRANSFORMERS_RECIPES: dict[str, Recipe] = {
    # Learned positions, queries that are scaled before they come.
    "OPT": Recipe(
        "OPTConfig", {"num_attention_heads": 6, "ffn_dim": 88, "word_embed_proj_dim": 72}
    ),
    # One head of keys and values.
    "GPT-BigCode": Recipe("GPTBigCodeConfig", {"num_attention_heads": 6, "n_inner": 88}),
    # A quarter of each head turns; attention and MLP side by side.
    "GPT-NeoX": Recipe("GPTNeoXConfig", {"num_attention_heads": 6, "rotary_pct": 0.5}),
    # Windows, layers without positions, logits that are scaled behind the head.
    "Cohere 2": Recipe(
        "Cohere2Config",
        GQA | {"sliding_window": 19, "sliding_window_pattern": 2, "logit_scale": 0.5},
    ),
    # Multi-head latent attention, whose values are shorter than its keys; experts in groups.
    "DeepSeek V3": Recipe(
        "DeepseekV3Config",
        MOE
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "kv_lora_rank": 20,
            "q_lora_rank": 28,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "head_dim": 6,
            "v_head_dim": 13,
            "n_routed_experts": 6,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    # Experts, and factors for embeddings, residuals, scores and logits.
    "Granite MoE": Recipe(
        "GraniteMoeConfig",
        GQA
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    # Soft caps of scores and logits; sinks. pagemesh's own decoder has both too.
    **{
        f"{name} by transformers": Recipe(
            RECIPES[name].config, RECIPES[name].settings, model_impl="transformers"
        )
        for name in ("Gemma 2", "GPT-OSS")
    },
}
