"""From the value of --model to a folder on this machine. No torch: routers use it too."""

from __future__ import annotations

from pathlib import Path

from pagemesh.errors import ConfigError

_TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
# Never pickles, and no second copy of the weights that some repositories keep in sub-folders.
_WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_HUB_TIMEOUT_S = 10.0


def resolve_model_path(model: str, *, tokenizer_only: bool = False) -> Path:
    """The folder of a model: a local one, or a hub id's, downloaded unless it is in the hub's cache.

    Raises ConfigError, in one sentence, when there is no such folder or id, the hub cannot be
    reached, or the folder lacks config.json (tokenizer.json with `tokenizer_only`).
    """
    folder = Path(model).expanduser()
    if folder.exists():
        if not folder.is_dir():
            raise ConfigError(f"--model is {model!r}, which is a file, but must be a folder")
    elif model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model is {model!r}, but there is no such folder")
    else:
        folder = _download(model, tokenizer_only)
    needed = "tokenizer.json" if tokenizer_only else "config.json"
    if not (folder / needed).is_file():
        raise ConfigError(f"--model is {model!r}, but {folder} has no {needed}")
    return folder


def _download(model: str, tokenizer_only: bool) -> Path:
    # Imported here because it takes as long as the rest of a router's start, and folders do without.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    files = _TOKENIZER_FILES if tokenizer_only else _TOKENIZER_FILES + _WEIGHT_FILES
    try:
        return Path(
            snapshot_download(model, allow_patterns=list(files), etag_timeout=_HUB_TIMEOUT_S)
        )
    except HFValidationError:
        why = "it is not a hub id either"
    except GatedRepoError:
        why = "the hub gives this model only to accounts that were granted access"
    except RepositoryNotFoundError:
        why = "the Hugging Face hub has no such model either"
    except LocalEntryNotFoundError:
        why = "the Hugging Face hub cannot be reached and the model is not in its cache"
    except Exception as error:
        # The one boundary to the hub's client, which passes on the errors of three transports.
        why = f"the Hugging Face hub failed with {type(error).__name__}: {_first_line(error)}"
    raise ConfigError(f"--model is {model!r}, but there is no such folder, and {why}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no details")
