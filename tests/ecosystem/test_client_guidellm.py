"""A few seconds of load by guidellm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ecosystem.conftest import DEMO, run
from tests.ecosystem.environments import programs_of
from tests.mesh.harness import Mesh

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

NUM_REQUESTS = 6
OUTPUT_TOKENS = 8


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_every_request_of_a_load_is_answered_and_counted(
    mesh: Mesh, tmp_path: Path, route: str
) -> None:
    command = [str(programs_of("guidellm") / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={mesh.url},request_format={route}"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={DEMO}"]
    lengths = f"prompt_tokens=32,output_tokens={OUTPUT_TOKENS}"
    command += ["--data", f"kind=synthetic_text,{lengths}"]
    run([*command, "--output", "kind=json,path=found.json"], tmp_path)
    (found,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert totals == {
        "successful": NUM_REQUESTS,
        "errored": 0,
        "incomplete": 0,
        "total": NUM_REQUESTS,
    }
    told = found["metrics"]["output_token_count"]["successful"]
    assert (told["min"], told["max"]) == (OUTPUT_TOKENS, OUTPUT_TOKENS)
    assert found["metrics"]["prompt_token_count"]["successful"]["min"] >= 32
    assert found["metrics"]["time_to_first_token_ms"]["successful"]["count"] == NUM_REQUESTS
