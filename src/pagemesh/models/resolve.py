"""From the value of --model to a folder on this machine. No torch: routers use it too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pagemesh.config import HubConfig
from pagemesh.config.served import SHORT_NAMES, find_local, is_path
from pagemesh.errors import ConfigError

if TYPE_CHECKING:
    from pagemesh.models.hub import Need

_NEEDED_FILE: Final[dict[Need, str]] = {
    "model": "config.json",
    "tokenizer": "tokenizer.json",
    "config": "config.json",
}


def resolve_model_path(model: str, hub: HubConfig | None = None, *, need: Need = "model") -> Path:
    """The folder of a model: a local one, by its path or a short name, or a hub id's, downloaded unless it is in the
    hub's cache.

    Raises ConfigError, in one sentence, when there is no such folder, id or revision, the hub cannot be
    reached, or what is needed is not there.
    """
    hub = hub or HubConfig()
    folder = find_local(model)
    if folder is not None:
        _check_folder(model, folder, hub)
    elif is_path(model):
        raise ConfigError(f"--model is {model!r}, but there is no such folder")
    elif model in SHORT_NAMES:
        raise ConfigError(
            f"--model is {model!r}, the model in {SHORT_NAMES[model]} of a checkout, the wheel and the images, but this"
            " installation came without it: write a folder or a hub id"
        )
    else:
        # Imported here because it takes as long as the rest of a router's start.
        from pagemesh.models.hub import download

        folder = download(model, hub, need)
    needed = _NEEDED_FILE[need]
    if not (folder / needed).is_file():
        raise ConfigError(f"--model is {model!r}, but {folder} has no {needed}")
    return folder


def _check_folder(model: str, folder: Path, hub: HubConfig) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--model is {model!r}, which is a file, but must be a folder")
    if hub.revision is not None:
        raise ConfigError(
            f"--revision is {hub.revision!r}, but --model is the folder {model!r}: only models of the "
            "Hugging Face hub have revisions"
        )
