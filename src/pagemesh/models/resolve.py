"""From the value of --model to a folder, or a GGUF file, on this machine. No torch: routers use it too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pagemesh.config import HubConfig
from pagemesh.config.served import SHORT_NAMES, find_local, is_path, split_gguf
from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import has_file
from pagemesh.gguf.model import SUFFIX, is_gguf

if TYPE_CHECKING:
    from pagemesh.models.hub import Need

_NEEDED_FILE: Final[dict[Need, str]] = {
    "model": "config.json",
    "tokenizer": "tokenizer.json",
    "config": "config.json",
}


def resolve_model_path(model: str, hub: HubConfig | None = None, *, need: Need = "model") -> Path:
    """The folder of a model: a local one, by its path or a short name, or a hub id's, downloaded unless it is in the
    hub's cache. Of a model in a GGUF file that file, which stands for a folder (`gguf.documents`).

    Raises ConfigError, in one sentence, when there is no such folder, id or revision, the hub cannot be
    reached, or what is needed is not there.
    """
    hub = hub or HubConfig()
    folder = find_local(model)
    if folder is not None:
        _check_folder(model, folder, hub)
    elif is_path(model):
        raise ConfigError(f"--model is {model!r}, but there is no such folder{_or_file(model)}")
    elif model in SHORT_NAMES:
        raise ConfigError(f"--model is {model!r}, {SHORT_NAMES[model].why_missing}")
    else:
        # Imported here because it takes as long as the rest of a router's start.
        from pagemesh.models.hub import download, download_gguf

        of_hub = split_gguf(model)
        folder = download(model, hub, need) if of_hub is None else download_gguf(of_hub, hub)
    needed = _NEEDED_FILE[need]
    if not has_file(folder / needed):
        raise ConfigError(f"--model is {model!r}, but {folder} has no {needed}{_hint(folder)}")
    return folder


def _or_file(model: str) -> str:
    return " or file" if model.endswith(SUFFIX) else ""


def _hint(folder: Path) -> str:
    """What to write for a folder of GGUF files."""
    name = next((path.name for path in sorted(folder.glob(f"*{SUFFIX}"))), None)
    return "" if name is None else f": write {folder / name} for the file that is there"


def _check_folder(model: str, folder: Path, hub: HubConfig) -> None:
    if not folder.is_dir() and not is_gguf(folder):
        raise ConfigError(
            f"--model is {model!r}, which is a file, but must be a folder or a file that ends in {SUFFIX}"
        )
    if hub.revision is not None:
        what = "folder" if folder.is_dir() else "file"
        raise ConfigError(
            f"--revision is {hub.revision!r}, but --model is the {what} {model!r}: only models of the "
            "Hugging Face hub have revisions"
        )
