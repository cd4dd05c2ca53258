"""What an engine on a CPU does without: Triton, which only comes with torch's build for CUDA, torch's compiler, and pydantic,
where settings are what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Answers a prompt in a process in which these cannot be imported. The compiler takes seconds, which the first request
# would wait for: torch imports it wherever it thinks that it might be about. pydantic takes a tenth of a second.
SCRIPT = """
import sys
sys.modules["triton"] = None
sys.modules["torch._dynamo"] = None
sys.modules["pydantic"] = None
from pagemesh.llm import LLM, SamplingParams
with LLM(sys.argv[1], device="cpu", max_num_seqs=4) as llm:
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3, logprobs=2, max_tokens=4)
    (output,) = llm.generate(["The capital of France is"], params, use_tqdm=False)
    print(len(output.outputs[0].token_ids))
"""


def test_an_engine_on_a_cpu_answers_without_compilers(demo_model: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(demo_model)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "4\n", done.stderr
