"""Packages that tools need in another version than the environment has, or that pip would not install beside it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FETCH_S: Final = 900.0
"""For what may be hundreds of megabytes."""


def fetched(requirement: str) -> Path:
    """The folder with a package of one version, `name==version`, without what it depends on.

    It lies in the environment, fetched when it is first asked for; whoever wants it, puts it into PYTHONPATH.
    """
    folder = Path(sys.prefix) / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=sys.prefix) as temporary:
        new = Path(temporary, "new")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install"),
                *("--no-deps", "--only-binary", ":all:", "--target", str(new), requirement),
            ],
            timeout=FETCH_S,
            check=True,
        )
        try:
            new.rename(folder)
        except OSError:
            # Somebody else was faster.
            if not folder.is_dir():
                raise
    return folder
