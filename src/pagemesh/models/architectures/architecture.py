"""What a file of this package says of its architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pagemesh.core.engine import Pooling
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.kv_scale_names import read_scale_name
from pagemesh.models.pooling_config import DEFAULT_POOLING
from pagemesh.models.sources import Source
from pagemesh.models.spec import DecoderSpec

_ROTARY_TABLE: Final = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one family of checkpoints maps onto the decoder."""

    name: str
    """As in config.json's `architectures`."""

    make_spec: Callable[[ConfigJson], DecoderSpec]
    """Reads config.json; raises ConfigError for settings that the decoder cannot express."""

    sources: Callable[[DecoderSpec], Iterable[Source]]
    """The tensors of a checkpoint; together they fill every parameter of the spec."""

    layouts: tuple[Mapping[str, str], ...] = ({}, {"model.": ""})
    """Ways in which checkpoints begin names: `sources`' beginnings and what stands in their place.

    The first layout whose embedding is there counts. Checkpoints of the model without its head lack the
    first part of all names."""

    older_endings: Mapping[str, str] = field(default_factory=dict)
    """Ends of `sources`' names, and what stands in their place in checkpoints of early years."""

    ignored: tuple[str, ...] = ()
    """Beginnings of names that belong to what is not run, such as an image encoder."""

    dtypes: Collection[str] = ("float32", "bfloat16", "float16")
    """Types that the architecture can be run in."""

    pooling: Pooling = DEFAULT_POOLING
    """How embeddings are made where the folder does not say."""

    def named_sources(self, spec: DecoderSpec, tensors: Collection[str]) -> list[Source]:
        """The sources under the names that a checkpoint with these tensors has for them."""
        sources = list(self.sources(spec))
        embedding = next(source.tensor for source in sources if source.parameter == "embed")
        for layout in self.layouts:
            if _rename(embedding, layout) in tensors:
                names = [_rename(source.tensor, layout) for source in sources]
                return [
                    source._replace(tensor=self._present_name(name, tensors))
                    for source, name in zip(sources, names, strict=True)
                ]
        return sources

    def may_ignore(self, tensor: str, spec: DecoderSpec) -> bool:
        """Whether a tensor that no source names repeats what the spec says, or is not run."""
        return (
            tensor.endswith(_ROTARY_TABLE)
            or read_scale_name(tensor) is not None
            or tensor.startswith(self.ignored)
            or (spec.tie_word_embeddings and tensor.endswith("lm_head.weight"))
        )

    def _present_name(self, tensor: str, tensors: Collection[str]) -> str:
        for ending, older in self.older_endings.items():
            name = tensor.removesuffix(ending) + older
            if tensor.endswith(ending) and tensor not in tensors and name in tensors:
                return name
        return tensor


def without_head(architecture: Architecture) -> Architecture:
    """The same decoder as transformers' base model of the family: `LlamaModel` of `LlamaForCausalLM`."""

    def make_spec(config: ConfigJson) -> DecoderSpec:
        # Another word for `is_causal: false`, which the registry refuses.
        config.require("use_bidirectional_attention", (False,))
        # Tied: there is no other projection to read, and none is made of the embedding.
        return replace(architecture.make_spec(config), tie_word_embeddings=True, has_head=False)

    name = architecture.name.replace("ForCausalLM", "Model")
    return replace(architecture, name=name, make_spec=make_spec)


def _rename(tensor: str, layout: Mapping[str, str]) -> str:
    for beginning, replacement in layout.items():
        if tensor.startswith(beginning):
            return replacement + tensor.removeprefix(beginning)
    return tensor
