"""What compiles a model's grammars for structured outputs, made when the first request asks for one."""

from __future__ import annotations

from functools import partial

from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.sampling.structured.constraint import GrammarBackend


def make_compiler(model: LoadedModel) -> GrammarCompiler:
    """A compiler for the model's vocabulary."""
    return GrammarCompiler(partial(load_backend, model))


def load_backend(model: LoadedModel) -> GrammarBackend:
    """What compiles grammars for a model; UnsupportedError when its tokenizer is of no use for that."""
    # Here, because few engines ever need the library and the tokenizer.
    from pagemesh.sampling.structured.guidance import GuidanceBackend

    return GuidanceBackend(model.folder, model.vocab_size, model.eos_token_ids)
