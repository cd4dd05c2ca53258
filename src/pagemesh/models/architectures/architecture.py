"""What a file of this package says of its architecture: its spec, and which tensor becomes which parameter. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from pagemesh.core.engine import Pooling
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec

if TYPE_CHECKING:
    import torch


DEFAULT_POOLING: Final = Pooling("last", normalize=True)
"""Of decoders whose folder says nothing, as in vLLM."""

_SCALE_NAME: Final = re.compile(
    r"(?:^|\.)layers\.(\d+)\.self_attn\.(?:attn\.|k_proj\.|v_proj\.)?([kv])_scale$"
)


class ScaleName(NamedTuple):
    """What a name says."""

    tensor: str
    layer: int
    part: Literal["k", "v"]


def read_scale_name(tensor: str) -> ScaleName | None:
    """What a tensor's name says, if it is such a scale; KV in a model's own type needs none."""
    match = _SCALE_NAME.search(tensor)
    return match and ScaleName(tensor, int(match[1]), cast(Literal["k", "v"], match[2]))


def scale_names(tensors: Collection[str]) -> list[ScaleName]:
    """Those of a checkpoint's tensors that are such scales."""
    names = map(read_scale_name, sorted(tensors))
    return [name for name in names if name is not None]


Convert = Callable[["torch.Tensor"], "torch.Tensor"]


Place = tuple[int | slice, ...]


class Source(NamedTuple):
    """One tensor of a checkpoint."""

    tensor: str  # its name there
    shape: tuple[int, ...]  # its shape there
    parameter: str  # a name of DecoderSpec.parameter_shapes
    place: Place = ()  # the part of the parameter; all of it when empty
    convert: Convert | None = None  # from its shape to that of its place


def stack_rows(
    parameter: str,
    tensors: Sequence[tuple[str, int]],
    columns: tuple[int, ...],
    leading: tuple[int, ...] = (),
) -> Iterator[Source]:
    """Tensors of so many rows, [rows, *columns], below each other in parameter[leading]."""
    begin = 0
    for tensor, num_rows in tensors:
        place: Place = (*leading, slice(begin, begin + num_rows))
        yield Source(tensor, (num_rows, *columns), parameter, place)
        begin += num_rows


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

    def names_of(self, tensor: str) -> tuple[str, ...]:
        """Those that checkpoints may have for a source's tensor, which one does not say without its tensors."""
        return tuple(dict.fromkeys(_rename(tensor, layout) for layout in self.layouts))

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
