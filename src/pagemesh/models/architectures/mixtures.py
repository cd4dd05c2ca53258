"""Settings that architectures with a mixture of experts have in common."""

from __future__ import annotations

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import MlpSpec, MoeSpec


def read_mixture(
    config: ConfigJson,
    expert: MlpSpec,
    num_experts: int,
    num_experts_per_token: int,
    *,
    normalize: bool,
    router_bias: bool = False,
    shared: MlpSpec | None = None,
) -> MoeSpec:
    """Experts of one kind; the numbers are the architecture's defaults."""
    key = "num_local_experts" if config.get("num_local_experts") is not None else "num_experts"
    num_experts = config.integer(key, num_experts)
    num_chosen = config.integer("num_experts_per_tok", num_experts_per_token)
    if num_chosen > num_experts:
        raise config.bad("num_experts_per_tok", f"at most {key} = {num_experts}")
    return MoeSpec(num_experts, num_chosen, expert, normalize, router_bias, shared)


def mixture_where_sparse(
    config: ConfigJson, num_layers: int, mixture: MoeSpec, dense: MlpSpec
) -> list[MlpSpec | MoeSpec]:
    """Qwen's choice of layers: every `decoder_sparse_step`-th has the mixture, unless it is listed."""
    step = config.integer("decoder_sparse_step", 1)
    dense_layers = config.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(index) is int for index in dense_layers):
        raise config.bad("mlp_only_layers", "a list of layer numbers")
    return [
        dense if index in dense_layers or (index + 1) % step != 0 else mixture
        for index in range(num_layers)
    ]
