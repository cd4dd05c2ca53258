"""Which architectures are known, by the name that config.json gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemesh.errors import ConfigError
from pagemesh.models import llama
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one family of checkpoints maps onto the decoder."""

    make_spec: Callable[[ConfigJson], DecoderSpec]
    """Reads config.json; raises ConfigError for settings that the decoder cannot express."""

    tensor_name: Callable[[str], str]
    """The checkpoint's name of a parameter of `DecoderSpec.parameter_shapes`."""

    is_redundant: Callable[[str, DecoderSpec], bool]
    """Whether a tensor of the checkpoint may be left unread."""


_ARCHITECTURES = {
    llama.ARCHITECTURE: Architecture(llama.make_spec, llama.tensor_name, llama.is_redundant)
}


def find_architecture(config: ConfigJson) -> Architecture:
    """The architecture that config.json names; ConfigError when it is not supported."""
    if config.get("quantization_config") is not None:
        raise ConfigError(f"{config.where} names a quantised checkpoint; these are not supported")
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise config.bad("architectures", "a list with one name")
    architecture = _ARCHITECTURES.get(str(names[0]))
    if architecture is None:
        supported = ", ".join(sorted(_ARCHITECTURES))
        raise ConfigError(
            f"{config.where} names the architecture {names[0]!r}, which is not supported; "
            f"supported: {supported}"
        )
    return architecture
