"""Machine code that processes before this one have made, on disk: most of what a kernel takes to compile.

Each function is a file of some kilobytes, named by a digest of all that its code follows from. (Numba and Triton do so.)
A smaller file for each recipe names the function that it led to.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "PAGEMESH_KERNEL_CACHE"
"""Names the folder; where it is set and empty, no code is kept."""

_MOST_FILES: Final = 8192
"""Beyond these the ones that were not used for the longest time are removed: some 20 MB."""

_SETTLED_S: Final = 30.0
"""How long before this process imported kernels their sources must have lain still: so long may its imports take."""

_SUFFIX: Final = ".o"
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_WRITABLE_BY_OTHERS: Final = 0o022
_imported_at: Final = time.time()


def key_of(*parts: str) -> str:
    """The name of what follows from these parts alone."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


@functools.cache
def kernel_sources() -> str | None:
    """A digest of the files by which this process writes kernels; None while they may be others than it has read."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    try:
        for path in sorted(root.rglob("*.py")):
            if path.stat().st_ctime > _imported_at - _SETTLED_S:
                return None
            digest.update(key_of(str(path.relative_to(root)), path.read_text("utf-8")).encode())
    except OSError:
        return None
    return digest.hexdigest()


def find(key: str) -> bytes | None:
    """What is kept under a name; None where nothing is, or what is there is not whole."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is None:
        return None
    path = folder / f"{key}{_SUFFIX}"
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    digest, content = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)
    return content


def keep(key: str, content: bytes) -> None:
    """For processes to come; where it cannot be written, these compile again."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is None:
        return
    with suppress(OSError):
        # Others may read meanwhile, or write the same.
        number, name = tempfile.mkstemp(_SUFFIX, dir=folder)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            Path(name).replace(folder / f"{key}{_SUFFIX}")
        except OSError:
            Path(name).unlink()
            raise


@functools.cache
def _folder(named: str | None) -> Path | None:
    """Where code lies; None for nowhere. Code that another user could have written is not run."""
    if named == "":
        return None
    try:
        folder = Path(named) if named is not None else _default()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # The latter where the user has no home.
        return None
    if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
        return None
    with suppress(OSError):
        _remove_oldest(folder)
    return folder


def _default() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "pagemesh/kernels"


def _remove_oldest(folder: Path) -> None:
    files = [(path.stat().st_mtime, path) for path in folder.iterdir() if path.suffix == _SUFFIX]
    for _, path in sorted(files)[:-_MOST_FILES]:
        path.unlink(missing_ok=True)
