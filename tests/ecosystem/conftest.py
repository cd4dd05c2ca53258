"""Programs that others wrote for OpenAI's or vLLM's API, each with its own packages, against one mesh."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.ecosystem.environments import programs_of
from tests.mesh.harness import Mesh, running_mesh

HERE: Final = Path(__file__).resolve().parent
DEMO: Final = HERE.parents[1] / "models/demo"
DEADLINE_S: Final = 300

QUIET: Final = {
    # No table of prices, no weights and no reports of use: the mesh is all that a client talks to.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh with the demo model, for all tests of the folder."""
    # lm-eval takes its tokens from the mesh, if it may.
    arguments = ("--model", str(DEMO), "--no-sample", "--enable-tokenizer-info-endpoint")
    with running_mesh(tmp_path_factory.mktemp("mesh"), *arguments) as mesh:
        yield mesh
        mesh.wait_until_idle()


def run(command: Sequence[str], folder: Path, **environment: str) -> str:
    """What a program of others prints that ends well within the deadline."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | QUIET | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def told(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a script of `programs/` by Python of an environment, and reads the last line that it prints."""

    def ask(environment: str, script: str, *arguments: str) -> Any:
        python, folder = programs_of(environment) / "python", tmp_path_factory.mktemp("told")
        printed = run([str(python), str(HERE / "programs" / script), mesh.url, *arguments], folder)
        return json.loads(printed.splitlines()[-1])

    return ask
