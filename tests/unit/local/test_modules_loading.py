"""Loading without the garbage collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PART = """
import gc
was_enabled, num_frozen = gc.isenabled(), gc.get_freeze_count()

def run(settings):
    print(was_enabled, gc.isenabled(), 0 < num_frozen < gc.get_freeze_count())
"""

COMMAND = """
from dataclasses import replace
from pagemesh.cli.main import COMMANDS, main
COMMANDS["health"] = replace(COMMANDS["health"], module="part")
main(["health", "127.0.0.1:1"])
"""


def printed_by(script: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_a_command_is_loaded_without_the_collector_and_runs_with_it(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(PART)
    assert printed_by(COMMAND, tmp_path) == "False True True\n"


IMPORT_THAT_FAILS = """
import gc
from pagemesh.local.processes import loading
try:
    with loading():
        import part_that_is_not_there
except ImportError:
    print(gc.isenabled(), gc.get_freeze_count())
"""


def test_what_cannot_be_loaded_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    assert printed_by(IMPORT_THAT_FAILS, tmp_path) == "True 0\n"
    off = f"import gc\ngc.disable()\n{IMPORT_THAT_FAILS}"
    assert printed_by(off, tmp_path) == "False 0\n"
