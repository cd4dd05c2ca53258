"""The engine without services: prompts in, answers out, in the process that asks.

Owns what users of `pagemesh.LLM` see: prompts, sampling parameters, outputs, the progress bar. The engine
below is the one that workers run.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from pagemesh.engine_process.environment import BOUNDED_CACHES, SPINNING_BRIEFLY
from pagemesh.local.processes import uncollected

if TYPE_CHECKING:
    from pagemesh.llm.llm import LLM
    from pagemesh.llm.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        RequestOutput,
    )
    from pagemesh.llm.params import SamplingParams
    from pagemesh.sampling.structured.outputs import StructuredOutputs

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
]

_HOMES = {
    "LLM": "pagemesh.llm.llm",
    "CompletionOutput": "pagemesh.llm.outputs",
    "EmbeddingOutput": "pagemesh.llm.outputs",
    "EmbeddingRequestOutput": "pagemesh.llm.outputs",
    "RequestOutput": "pagemesh.llm.outputs",
    "SamplingParams": "pagemesh.llm.params",
    "StructuredOutputs": "pagemesh.sampling.structured.outputs",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use: `pagemesh` itself is imported without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # What the user has set counts; and a torch that is loaded already keeps what it has found.
    for variable, value in {**SPINNING_BRIEFLY, **BOUNDED_CACHES}.items():
        os.environ.setdefault(variable, value)
    with uncollected():
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
