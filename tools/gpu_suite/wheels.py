"""Fetch the wheels that a machine without a network lacks: `python -m tools.gpu_suite.wheels FOLDER --python 3.12`."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tools.gpu_suite.packages import WHEELS
from tools.gpu_suite.record import ROOT

_PLATFORMS: Final = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 27, 28, 31)))
_FETCH_S: Final = 600.0


def main() -> None:
    """Fill the folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_suite.wheels", description=__doc__)
    parser.add_argument("folder", help="for the wheels")
    parser.add_argument("--python", default="3.12", help="whose wheels (default: %(default)s)")
    parser.add_argument("--packages", default=" ".join(WHEELS), help="with blanks between")
    parser.add_argument("--machine", default="x86_64", help="its processor (default: %(default)s)")
    options = parser.parse_args()
    if not options.folder:
        sys.exit("name a folder for the wheels: make gpu-wheels WHEELS=folder")
    if not re.fullmatch(r"3\.\d+", options.python):
        sys.exit(f"a Python is named as 3.12, not {options.python!r}")
    folder = Path(options.folder)
    words = command(folder, options.python, options.packages.split(), options.machine)
    try:
        code = subprocess.run(words, timeout=_FETCH_S, check=False).returncode
    except subprocess.TimeoutExpired:
        sys.exit(f"pip did not end within {_FETCH_S:.0f} s")
    if code:
        sys.exit(f"pip cannot fetch all wheels for Python {options.python}")
    files = list(folder.glob("*.whl"))
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} wheels for Python {options.python}, {size / 1e6:.0f} MB, in {folder}")


def command(folder: Path, python: str, packages: list[str], machine: str) -> list[Any]:
    """Pip's, for another Python than its own; versions are those that the project is tested with."""
    abis = (f"cp{python.replace('.', '')}", "abi3", "none")
    return [
        *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"),
        *("--only-binary=:all:", "--python-version", python, "--implementation", "cp"),
        *(word for abi in abis for word in ("--abi", abi)),
        *(word for name in _PLATFORMS for word in ("--platform", f"{name}_{machine}")),
        *("-c", ROOT / "constraints.txt", "-d", folder, *packages),
    ]


if __name__ == "__main__":
    main()
