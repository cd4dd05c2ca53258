"""Virtual environments of clients that are no dependencies of ours: each has its own, which is kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.needs import lack

INSTALL_DEADLINE_S: Final = 1200

REQUIREMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    # PyTorch without CUDA, which would be some gigabytes, where its index can be reached.
    "guidellm": (
        "--extra-index-url=https://download.pytorch.org/whl/cpu",
        "--retries=1",
        "torch==2.13.0",
        "guidellm==0.8.1",
    ),
    "litellm-proxy": ("litellm[proxy]==1.108.7",),
    "llama-index": (
        "llama-index-core==0.14.25",
        "llama-index-llms-openai-like==0.8.1",
        "llama-index-embeddings-openai-like==0.4.0",
    ),
    "lm-eval": ("lm-eval[api]==0.4.13", "transformers==5.24.0"),
    "milvus": ("milvus-lite==3.2.2", "pymilvus==3.0.2", "openai==3.52.0"),
}
"""What pip is told, by the name of the environment."""


def cache() -> Path:
    """Folder of what pagemesh keeps for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagemesh"


def programs_of(name: str) -> Path:
    """Folder with the programs of an environment, Python among them; installs them first where they are not there, and
    skips the test where no registry can be reached."""
    folder = cache() / "ecosystem" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # Somebody else's tests may install the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, REQUIREMENTS[name])
    return folder / "venv/bin"


def _install(folder: Path, requirements: tuple[str, ...]) -> None:
    ready, environment = folder / "ready", folder / "venv"
    wanted = "\n".join((sys.version, *requirements))
    if ready.is_file() and ready.read_text(encoding="utf-8") == wanted:
        return
    ready.unlink(missing_ok=True)
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    # Modules are compiled when they are imported: most never are.
    pip = [str(environment / "bin/pip"), "--disable-pip-version-check", "install", "--no-compile"]
    installed = subprocess.run(
        [*pip, "--quiet", "--no-input", *requirements],
        capture_output=True,
        text=True,
        timeout=INSTALL_DEADLINE_S,
    )
    if installed.returncode:
        lack("packages of clients", f"pip said {installed.stderr.strip()[-300:]!r}")
    ready.write_text(wanted, encoding="utf-8")
