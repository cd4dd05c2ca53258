"""What must be on a machine for kernels to be compiled there: Triton, a C compiler and Python's headers.

Triton compiles kernels itself, but what starts them is C, which it gives to the machine's compiler when the first
kernel starts: after the weights have been loaded, and in the words of that compiler.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from typing import Final

from pagemesh.errors import ConfigError

_COMPILERS: Final = ("gcc", "clang")
"""Those that Triton looks for, in its order, where CC names none."""

_NO_HEADERS: Final = re.compile("error: '?Python.h")
"""How gcc and clang say it. Where a header that Python.h includes is missing, its name stands in front of that."""

_SECONDS: Final = 60.0
"""For a compiler to read the headers, which takes a fraction of one unless the machine is very busy."""

_CPU_INSTEAD: Final = "; --device cpu does without"


def check_toolchain() -> None:
    """ConfigError that names what is missing, and what to install."""
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "the kernels for this machine's GPU need Triton, which is not installed: pip install 'pagemesh[gpu]'"
            f" on Linux{_CPU_INSTEAD}"
        )
    compiler = _find_compiler()
    fault = _read_headers(compiler)
    if fault is None:
        return
    if _NO_HEADERS.search(fault):
        raise ConfigError(
            f"Triton needs Python's headers, but {compiler} finds no Python.h in {_include_folder()}: install them"
            f" (Debian and Ubuntu: apt-get install python3-dev){_CPU_INSTEAD}"
        )
    raise ConfigError(
        f"Triton needs a C compiler that works, but {compiler} says {fault!r}: install what it misses (Debian and"
        f" Ubuntu: apt-get install gcc libc6-dev){_CPU_INSTEAD}"
    )


def _find_compiler() -> str:
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, _COMPILERS if named is None else (named,))), None)
    if found is not None:
        return found
    missing = (
        "finds neither gcc nor clang" if named is None else f"CC is {named!r}, which is no program"
    )
    raise ConfigError(
        f"Triton needs a C compiler, but {missing}: install one (Debian and Ubuntu: apt-get install gcc libc6-dev), or"
        f" name one in CC{_CPU_INSTEAD}"
    )


def _read_headers(compiler: str) -> str | None:
    """The compiler's first complaint about Python's headers and those of the C library, which they include."""
    command = [compiler, "-fsyntax-only", f"-I{_include_folder()}", "-x", "c", "-"]
    try:
        compiled = subprocess.run(
            command,
            input="#include <Python.h>\n",
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if compiled.returncode == 0:
        return None
    lines = compiled.stderr.splitlines()
    return next((line for line in lines if "error" in line), f"exit status {compiled.returncode}")


def _include_folder() -> str:
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme is for what is installed beside its packages; the headers are one of them.
    return sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
