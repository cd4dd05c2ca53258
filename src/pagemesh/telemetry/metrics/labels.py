"""Labels that several metrics share, with all their values or what bounds them. None comes from a client."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics.specs import Label, Process

SERVING: Final = (Process.ROUTER, Process.PREFILL, Process.DECODE)
"""Who exports what vLLM says of requests: a router of the whole mesh, a worker of its engine."""
WORKERS: Final = (Process.PREFILL, Process.DECODE)

ENGINE: Final = "0"
"""The only value of the label engine: each process shows itself as one engine of vLLM, a router the mesh."""

MODEL_NAME: Final = Label(
    "model_name",
    source="the models in the process's settings, by their own names and not by aliases",
)
ENGINE_LABEL: Final = Label("engine", (ENGINE,))
MODEL: Final = (MODEL_NAME,)
VLLM: Final = (MODEL_NAME, ENGINE_LABEL)
"""The labels that vLLM's metrics have."""

ROLE: Final = Label("role", ("prefill", "decode"))
RPC: Final = Label("rpc", ("prefill", "fetch"))
PATHS: Final = ("local", "remote", "pull", "remote_pull")
PATH: Final = Label("path", PATHS)
LOOKUP: Final = Label("lookup", ("answered", "failed", "skipped"))
POLICY: Final = Label("policy", ("kv_aware", "prefix_hash", "least_loaded", "round_robin"))
