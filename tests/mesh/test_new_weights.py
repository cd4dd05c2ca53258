"""A model's folder gets other weights while it is served: what the old ones began, the new ones do not go on with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.mesh.altered_worker import DEMO
from tests.mesh.harness import MODEL, running_mesh, until
from tests.mesh.test_kills import COUNTING, ask, completion
from tests.support.late_imports import openai

pytestmark = pytest.mark.costly

PATIENCE_S = 20
"""Longer than a worker takes to start, and so to be there for requests that look for one."""

NUM_STREAMS = 4


def change_weights(folder: Path) -> None:
    """The same model with its first layer turned round, put in place by a rename."""
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(weights) if weights[name].dim() == 2)
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, folder / "new", metadata={"format": "pt"})
    (folder / "new").rename(folder / "model.safetensors")


def test_new_weights_go_on_with_no_answer_of_the_old_ones(tmp_path: Path) -> None:
    folder = tmp_path / MODEL
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("__pycache__"))
    arguments = ["--model", str(folder), "--no-sample", "--prefill", "0"]
    arguments += ["--migration-timeout", str(PATIENCE_S)]
    with running_mesh(tmp_path, *arguments) as mesh:
        before = ask(mesh, completion(COUNTING, 24))
        asked = {**completion(COUNTING, 1500), "stream": True, "extra_body": {"ignore_eos": True}}
        create = mesh.client().completions.create
        streams = [iter(create(**asked)) for _ in range(NUM_STREAMS)]
        for stream in streams:
            next(stream)
        change_weights(folder)
        wait_until_back = mesh.kill("decode-0")
        for stream in streams:
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            assert caught.value.code == "worker_lost"
        wait_until_back()
        until(lambda: mesh.health()["decode_workers"], "the router can use the new worker")
        assert ask(mesh, completion(COUNTING, 24)) != before
        mesh.wait_until_idle()
        assert mesh.metric("router", "pagemesh:requests_resubmitted_total") == 0
