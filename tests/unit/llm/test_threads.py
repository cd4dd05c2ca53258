from __future__ import annotations

import os
import subprocess
import sys

# torch reads it when it is loaded, which takes seconds that nobody needs here.
PRINT_SPINS = """
import os, sys

class WhenTorchIsLoaded:
    def find_spec(name, path, target=None):
        if name == "torch":
            print(os.environ["GOMP_SPINCOUNT"], flush=True)
            os._exit(0)

sys.meta_path.insert(0, WhenTorchIsLoaded)
from pagemesh.llm import LLM
print("torch was not loaded")
"""


def spins_in(environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", PRINT_SPINS]
    run = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    return run.stdout.decode().strip()


def test_threads_spin_briefly_unless_the_user_wants_otherwise() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    assert spins_in(environment) == "1500"
    assert spins_in({**environment, "GOMP_SPINCOUNT": "7"}) == "7"
