"""Models of the Hugging Face hub: which files of a repository are fetched, and what can go wrong.

Never pickles. A token in HF_TOKEN, or HUGGING_FACE_HUB_TOKEN, opens gated and private models; HF_HUB_OFFLINE=1 keeps to what was
downloaded before; HF_ENDPOINT names a mirror. All three are the hub client's own.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import huggingface_hub
import structlog
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.std import tqdm

from pagemesh.config import HubConfig
from pagemesh.config.served import GgufOfHub
from pagemesh.errors import ConfigError

Need = Literal["model", "tokenizer", "config"]
"""What is wanted of a model: all of it, what turns text into tokens, or config.json alone."""

_LENGTH_FILES: Final = "sentence_*_config.json"
_TOKEN_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where the hub's library looks for a token, in this order."""

_TOKENIZER_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "modules.json",
    "*_Pooling/config.json",
    _LENGTH_FILES,
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "chat_template.json",
)
# No second copy of the weights that some repositories keep in sub-folders.
_WEIGHT_FILES: Final = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_FILES: Final[dict[Need, tuple[str, ...]]] = {
    "model": _TOKENIZER_FILES + _WEIGHT_FILES,
    "tokenizer": _TOKENIZER_FILES,
    "config": ("config.json", _LENGTH_FILES),
}
_PARTS: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_NO_MODEL: Final = "mmproj"
"""How the names of encoders of images begin, which lie beside models in the same types."""

_WEIGHTS: Final = "model.safetensors and no shards of it"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
_TIMEOUT_S: Final = 10.0

log = structlog.get_logger(__name__)


def download(model: str, hub: HubConfig, need: Need) -> Path:
    """The folder with a hub id's files; those in the hub's cache are not fetched again.

    Shows a bar on a terminal and writes log lines elsewhere. Raises ConfigError in one sentence.
    """
    path = _fetch(model, hub, _FILES[need])
    if need == "model" and not any(path.glob("*.safetensors")):
        raise _lacking(_WEIGHTS, model, hub, path)
    if need == "config" and not (path / "config.json").is_file():
        raise _lacking("config.json", model, hub, path)
    return path


def download_gguf(wanted: GgufOfHub, hub: HubConfig) -> Path:
    """A GGUF file of a repository, the first of several where it is split; ConfigError in one sentence.

    The whole of it, whatever is wanted of the model: what turns text into tokens is in it too.
    """
    model, file = wanted
    if file.endswith(".gguf"):
        patterns = [_PARTS.sub(r"-*-of-\1.gguf", file)]
        names = [file]
    else:
        patterns = [f"*{sign}{file}{rest}" for sign in "-." for rest in (".gguf", "-*-of-*.gguf")]
        names = patterns
    folder = _fetch(model, hub, patterns)
    found = sorted(
        {path for name in names for path in folder.rglob(name)} - set(folder.rglob(f"{_NO_MODEL}*"))
    )
    firsts = [path for path in found if not _PARTS.search(path.name) or "-00001-of-" in path.name]
    if len(firsts) != 1:
        what = f"{len(firsts)} files for it" if firsts else "no such GGUF file"
        named = f": {', '.join(str(path.relative_to(folder)) for path in firsts)}" if firsts else ""
        raise ConfigError(f"--model is '{model}:{file}', but {model} has {what}{named}")
    return firsts[0]


def _fetch(model: str, hub: HubConfig, patterns: Sequence[str]) -> Path:
    try:
        folder = huggingface_hub.snapshot_download(
            model,
            revision=hub.revision,
            cache_dir=hub.download_dir,
            allow_patterns=list(patterns),
            etag_timeout=_TIMEOUT_S,
            # The hub's own bars show themselves on terminals only.
            tqdm_class=None if sys.stderr.isatty() else DownloadLog,
        )
    except Exception as error:
        # The one boundary to the hub's client, which passes on the errors of three transports.
        raise _translate(error, model, hub) from error
    return Path(folder)


def _translate(error: Exception, model: str, hub: HubConfig) -> ConfigError:
    revision = "" if hub.revision is None else f" with --revision {hub.revision!r}"
    prefix = f"--model is {model!r}{revision}, but there is no such folder, and "
    return ConfigError(prefix + _reason(error))


def _reason(error: Exception) -> str:
    given = next((name for name in _TOKEN_VARIABLES if os.environ.get(name)), None)
    token = (
        f"no token ({' and '.join(_TOKEN_VARIABLES)} are unset)"
        if given is None
        else f"the token in {given}"
    )
    match error:
        case HFValidationError():
            return "it is not a hub id either"
        case GatedRepoError():
            return (
                "the hub gives this model only to accounts that were granted access; it was asked with "
                f"{token}"
            )
        case RepositoryNotFoundError():
            return f"the Hugging Face hub has no such model either; it was asked with {token}"
        case RevisionNotFoundError():
            return "the Hugging Face hub has no such revision of it"
        case LocalEntryNotFoundError() if isinstance(error.__cause__, OfflineModeIsEnabled):
            return "it is not (or not all) in the hub's cache, while HF_HUB_OFFLINE forbids to download it"
        case LocalEntryNotFoundError():
            return "the Hugging Face hub cannot be reached and the model is not in its cache"
        case _:
            first_line = next(iter(str(error).splitlines()), "no details")
            return f"the Hugging Face hub failed with {type(error).__name__}: {first_line}"


def _lacking(what: str, model: str, hub: HubConfig, folder: Path) -> ConfigError:
    """Says what there is instead of a file, as far as the hub tells."""
    try:
        # The folder is named after the commit.
        names = huggingface_hub.HfApi().list_repo_files(model, revision=folder.name)
    except Exception:
        # It may be out of reach by now; the answer is no in any case.
        names = []
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    files = sorted(name for name in names if name.endswith(".gguf"))
    why = f"it has no {what}"
    if files:
        why += f": write {model}:{files[0]} for a GGUF file of it"
    elif pickles and what == _WEIGHTS:
        why = f"its weights are there only as {pickles[0]}, a pickle, which is never loaded"
    revision = "" if hub.revision is None else f" with --revision {hub.revision!r}"
    return ConfigError(f"--model is {model!r}{revision}, but {why}")


class DownloadLog(tqdm):  # type: ignore[misc]
    """A progress bar that writes a log line now and then."""

    monitor_interval = 0  # no thread that looks after bars
    log_interval_s = 10.0
    _logged_at = time.monotonic()

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"disable": False, "file": io.StringIO()})

    def display(self, *_: Any, **__: Any) -> None:
        """Called whenever there is something new; of several bars, those that count bytes matter."""
        now = time.monotonic()
        if self.unit == "B" and self.n and now - DownloadLog._logged_at >= self.log_interval_s:
            DownloadLog._logged_at = now
            log.info("downloading", num_bytes=int(self.n), num_total_bytes=int(self.total or 0))
