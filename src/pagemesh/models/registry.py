"""Which architectures are known, by the name that config.json gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf
from pagemesh.models.architectures.architecture import Architecture, without_head
from pagemesh.models.architectures.bert import BERTS, DISTILBERTS
from pagemesh.models.architectures.falcon import FALCON
from pagemesh.models.architectures.gemma import GEMMA2, GEMMA3, GEMMA3_WITH_IMAGES
from pagemesh.models.architectures.gpt_oss import GPT_OSS
from pagemesh.models.architectures.llama import LLAMA, MISTRAL, MIXTRAL, PHI3
from pagemesh.models.architectures.modernbert import MODERNBERTS
from pagemesh.models.architectures.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.methods import read_quantization

_GENERATING: Final = (
    FALCON,
    GEMMA2,
    GEMMA3,
    GEMMA3_WITH_IMAGES,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
)

# Decoders that embedding models are made from, and encoders.
_EMBEDDING: Final = (
    *map(without_head, (GEMMA2, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3)),
    *BERTS,
    *DISTILBERTS,
    *MODERNBERTS,
)

_ARCHITECTURES: Final = {
    architecture.name: architecture for architecture in (*_GENERATING, *_EMBEDDING)
}


def find_architecture(config: ConfigJson) -> Architecture | None:
    """The architecture that config.json names; None when it is none that pagemesh runs itself.

    ConfigError when it names none, or a checkpoint that nobody here can read.
    """
    read_quantization(config)
    # Of models that were made from decoders, some look at the tokens behind as well.
    config.require("is_causal", (True,))
    return _ARCHITECTURES.get(_name(config))


def choose_architecture(folder: Path, config: ConfigJson, model_impl: str) -> Architecture | None:
    """The architecture that pagemesh runs a folder's model by, whose config.json is given, as --model-impl says; None
    when transformers is to run it.

    ConfigError where the one that --model-impl names cannot, and for what `find_architecture` raises it for.
    """
    architecture = find_architecture(config)
    if model_impl == "transformers":
        if is_gguf(folder):
            raise ConfigError(
                f"{folder} is a GGUF file, which pagemesh runs itself: leave out --model-impl transformers"
            )
        return None
    if architecture is None and model_impl == "pagemesh":
        raise unknown_architecture(config)
    return architecture


def unknown_architecture(config: ConfigJson) -> ConfigError:
    """The error for an architecture that is not here, where only pagemesh's own will do."""
    supported = ", ".join(sorted(_ARCHITECTURES))
    return ConfigError(
        f"{config.where} names the architecture {_name(config)!r}, which pagemesh does not run itself; "
        f"it runs {supported}"
    )


def _name(config: ConfigJson) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise config.bad("architectures", "a list with one name")
    return str(names[0])
