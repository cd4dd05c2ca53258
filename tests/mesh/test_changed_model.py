"""`pagemesh serve` with values of its own for config.json: a context that YaRN stretches, in all parts."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from pagemesh.cli.vllm.variants import Changes, make_variant
from pagemesh.config import HubConfig
from pagemesh.llm import LLM, SamplingParams
from tests.mesh.conftest import DEMO
from tests.mesh.harness import DEADLINE_S, running_command
from tests.support.ports import free_port

pytestmark = pytest.mark.costly

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048}


def test_a_prompt_longer_than_the_models_own_context_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    port = free_port()
    command = [sys.executable, "-P", "-m", "pagemesh.cli", "serve", str(DEMO), "--port", str(port)]
    command += ["--rope-scaling", json.dumps(YARN), "--max-model-len", "4k"]
    prompt = random.Random(3).choices(range(20, 2000), k=3000)
    with running_command(command, f"127.0.0.1:{port}", tmp_path) as mesh:
        (listed,) = mesh.http.get(f"{mesh.url}/v1/models").json()["data"]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        answer = mesh.http.post(f"{mesh.url}/v1/completions", json=body, timeout=DEADLINE_S)
    assert (listed["id"], listed["max_model_len"]) == ("demo", 4000)
    assert answer.status_code == 200, answer.text
    # The very folder: the cache has it already.
    changed = make_variant(str(DEMO), Changes({"rope_scaling": YARN}), HubConfig())
    assert listed["root"] == str(changed)
    with LLM(str(changed), device="cpu", max_model_len=4000) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    assert answer.json()["choices"][0]["text"] == output.outputs[0].text
