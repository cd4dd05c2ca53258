"""Loading without the garbage collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


WORK = """
import gc, weakref
from pagemesh.local.processes import collected_at_end

class Left:
    pass

def leave():
    left = Left()
    left.own = left
    return weakref.ref(left)

before = leave()
if {is_frozen}:
    gc.freeze()
try:
    with collected_at_end():
        during = leave()
        print(gc.isenabled(), during() is None)
        if {fails}:
            raise ValueError
except ValueError:
    pass
print(gc.isenabled(), gc.get_freeze_count() > 0, during() is None, before() is None)
gc.collect()
print(before() is None)
"""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_only_what_work_has_left_is_collected_at_its_end(
    is_frozen: bool, fails: bool, tmp_path: Path
) -> None:
    lines = printed_by(WORK.format(is_frozen=is_frozen, fails=fails), tmp_path).splitlines()
    # What was there before can be collected later, where nobody has frozen it.
    assert lines == ["False False", f"True {is_frozen} {not fails} False", str(not is_frozen)]


IMPORT_OF_A_NAME = """
import gc, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(gc.isenabled())
            raise ImportError
sys.meta_path.insert(0, Finder())
try:
    from pagemesh import LLM
except ImportError:
    print(gc.isenabled(), gc.get_freeze_count())
"""


def test_offline_modules_are_imported_without_it_and_nothing_of_the_user_is_frozen(
    tmp_path: Path,
) -> None:
    assert printed_by(IMPORT_OF_A_NAME, tmp_path) == "False\nTrue 0\n"
