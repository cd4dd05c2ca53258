from __future__ import annotations

import os
import subprocess
import sys

PRINT_POLICY = "import os; from pagemesh.engine import LLM; print(os.environ['OMP_WAIT_POLICY'])"


def policy_in(environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", PRINT_POLICY]
    run = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    return run.stdout.decode().strip()


def test_threads_sleep_while_they_wait_unless_the_user_wants_otherwise() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    assert policy_in(environment) == "PASSIVE"
    assert policy_in({**environment, "OMP_WAIT_POLICY": "ACTIVE"}) == "ACTIVE"
