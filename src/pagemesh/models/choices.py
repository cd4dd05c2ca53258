"""What config.json leaves to settings and other files: type, context, end tokens, pooling. No torch: plans need it too."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pagemesh.config import KvCacheDtype
from pagemesh.core.engine import Pooling
from pagemesh.errors import ConfigError
from pagemesh.gguf.config import PoolingKind, pooling_kind
from pagemesh.gguf.documents import has_file
from pagemesh.gguf.model import is_gguf, open_gguf
from pagemesh.models.architectures.architecture import DEFAULT_POOLING
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.spec import DecoderSpec
from pagemesh.tokenizer.folder import end_token_id

FP8_KV: Final = "float8_e4m3fn"
"""What --kv-cache-dtype calls fp8, by its name in torch."""

_INT8_KV: Final = "int8"

_KV_DTYPES: Final = {
    "fp8": FP8_KV,
    "fp8_e4m3": FP8_KV,
    "int8": _INT8_KV,
    "int8_per_token_head": _INT8_KV,
}
"""By the names of --kv-cache-dtype."""

_FP8_CAPABILITY: Final = (8, 9)
"""The first compute capability whose instructions convert e4m3 (CUDA C++ Programming Guide); on older
ones Triton compiles no kernel with it."""

_DTYPES: Final = ("float32", "bfloat16", "float16")


def choose_max_model_len(asked: int | None, spec: DecoderSpec, folder: Path) -> int:
    """Longest prompt plus output: --max-model-len, which may not be longer than the model can be.

    Encoders are often made for shorter texts than they have positions for; then that is the default.
    """
    own = None if spec.causal else read_sentence_length(folder)
    if asked is None:
        return spec.max_position if own is None else int(min(own, spec.max_position))
    if asked > spec.longest_position:
        raise ConfigError(
            f"--max-model-len is {asked}, but the model's own context is {spec.longest_position}"
        )
    return asked


def choose_dtype(asked: str, settings: ConfigJson, supported: Collection[str]) -> str:
    """The type asked for, or that of config.json, where a part of a larger model has its own key."""
    name = asked
    source = "--dtype"
    if name == "auto":
        parts = (settings, settings.child("text_config"))
        keys = [(part, key) for part in parts if part for key in ("dtype", "torch_dtype")]
        part, key = next(
            ((part, key) for part, key in keys if part.get(key) is not None), (settings, "dtype")
        )
        part.require(key, _DTYPES)
        name, source = str(part.get(key) or "float32"), f"{settings.where} has {key}, which"
    if name not in supported:
        raise ConfigError(
            f"{source} is {name}, in which this architecture overflows: choose --dtype "
            f"{' or '.join(supported)}"
        )
    return name


def choose_kv_dtype(
    asked: KvCacheDtype,
    dtype: str,
    device: Literal["cpu", "cuda"],
    *,
    causal: bool = True,
    capability: tuple[int, int] | None = None,
) -> str:
    """Type of the KV blocks of a model that runs in `dtype`, by its name in torch.

    ConfigError for int8 on a GPU, and for fp8 on one whose compute `capability` is known and too low, for which there
    are no kernels, and for 8 bits of an encoder.
    """
    if asked == "auto":
        return dtype
    if not causal:
        raise ConfigError(
            f"--kv-cache-dtype is {asked!r}, but must be auto for an encoder, which keeps no KV"
        )
    kv_dtype = _KV_DTYPES[asked]
    if device == "cuda" and kv_dtype == _INT8_KV:
        raise ConfigError(
            f"--kv-cache-dtype is {asked!r}, but must be auto or fp8 on a GPU, whose kernels have no int8"
        )
    if capability is not None and capability < _FP8_CAPABILITY:
        raise ConfigError(
            f"--kv-cache-dtype is {asked!r}, but must be auto on this GPU: it has compute"
            f" capability {capability[0]}.{capability[1]}, and 8-bit floats begin with"
            f" {_FP8_CAPABILITY[0]}.{_FP8_CAPABILITY[1]}"
        )
    return kv_dtype


def require_transformers(settings: ConfigJson) -> None:
    """ConfigError unless transformers is installed, for models that it runs."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"{settings.where} names an architecture that only transformers can run, which is not "
            "installed: pip install 'pagemesh[transformers]'"
        )


def read_end_token_ids(folder: Path, settings: ConfigJson, vocab_size: int) -> tuple[int, ...]:
    """Those of the model's files, and the tokenizer's own: where they differ, both end an answer, as in vLLM."""
    ids = _named_end_ids(folder, settings, vocab_size)
    own = end_token_id(folder)
    return ids if own is None or own in ids or own >= vocab_size else (*ids, own)


def _named_end_ids(folder: Path, settings: ConfigJson, vocab_size: int) -> tuple[int, ...]:
    """generation_config.json over config.json, since instruction-tuned models correct it there."""
    generation = folder / "generation_config.json"
    sources = [ConfigJson.read(generation)] if has_file(generation) else []
    for source in (*sources, settings):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise source.bad("eos_token_id", "a token id or a list of them")
            if any(token_id >= vocab_size for token_id in ids):
                raise source.bad("eos_token_id", f"below the model's vocab_size of {vocab_size}")
            return tuple(ids)
    return ()


_LENGTH_FILES: Final = tuple(
    f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")
)
"""sentence-transformers' names for its own; it takes the first that is there."""

_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
"""Where it keeps the length since version 6."""


def read_sentence_length(folder: Path) -> float | None:
    """Tokens of the longest text that the model was made for; None when nobody says.

    ConfigError when texts were to be changed before the tokenizer sees them.
    """
    path = next((folder / name for name in _LENGTH_FILES if (folder / name).is_file()), None)
    if path is not None:
        config = ConfigJson.read(path)
        config.require("do_lower_case", (False,))
        if config.get("max_seq_length") is not None:
            return config.integer("max_seq_length")
    path = folder / _TOKENIZER_CONFIG
    if not path.is_file():
        return None
    tokenizer = ConfigJson.read(path)
    # A number beyond all bounds where the tokenizer has none.
    return (
        None if tokenizer.get("model_max_length") is None else tokenizer.number("model_max_length")
    )


MODULES_FILE: Final = "modules.json"

_POOLING_KINDS: Final[dict[str, PoolingKind]] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
"""By the names of sentence-transformers."""

_POOLING_FLAGS: Final = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
"""Before its version 6 there was a flag for each mode."""

_CAUSAL_POOLING_KINDS: Final = {
    mode: kind for mode, kind in _POOLING_KINDS.items() if kind != "cls"
}
"""A decoder's first token sees nothing but itself."""


def read_pooling(
    folder: Path, default: Pooling = DEFAULT_POOLING, *, causal: bool = True
) -> Pooling:
    """What modules.json and the folder of its pooling module say, or a GGUF file; without them, `default`.

    ConfigError for modules and ways of pooling that would change the vectors and are not supported.
    """
    if is_gguf(folder):
        named = pooling_kind(open_gguf(folder))
        # Whether vectors are scaled no key says; llama.cpp scales them.
        return default if named is None else Pooling(named, normalize=True)
    path = folder / MODULES_FILE
    if not path.is_file():
        return default
    modules = _read_modules(path)
    kind: PoolingKind | None = None
    normalize = False
    for name, place in modules[1:]:
        if name == "Pooling" and kind is None:
            kinds = _CAUSAL_POOLING_KINDS if causal else _POOLING_KINDS
            kind = _read_pooling_kind(folder / place / "config.json", kinds)
        elif name == "Normalize":
            normalize = True
        else:
            raise ConfigError(
                f"{path} has the module {name!r}, but only one Pooling and Normalize can follow the "
                "Transformer"
            )
    if kind is None:
        raise ConfigError(f"{path} has no Pooling module")
    return Pooling(kind, normalize)


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """The last part of each module's type, and its folder."""
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        found = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in modules]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} is not a list of modules: {error}") from error
    for _, place in found:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise ConfigError(f"{path} names the folder {place!r}, which lies outside its own")
    return found


def _read_pooling_kind(path: Path, kinds: Mapping[str, PoolingKind]) -> PoolingKind:
    config = ConfigJson.read(path)
    mode = config.get("pooling_mode")
    if mode is None:
        flags = [flag for flag in config if flag.startswith("pooling_mode_")]
        chosen = [_POOLING_FLAGS.get(flag, flag) for flag in flags if config.flag(flag, False)]
    else:
        chosen = [str(name) for name in (mode if isinstance(mode, list) else [mode])]
    if len(chosen) != 1 or chosen[0] not in kinds:
        raise ConfigError(
            f"{path} chooses the pooling {' and '.join(chosen) or 'of nothing'}, but must choose one "
            f"of {', '.join(kinds)}"
        )
    return kinds[chosen[0]]
