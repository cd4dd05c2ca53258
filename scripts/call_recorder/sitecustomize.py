"""Records which functions of pagemesh this process executes, in windows that another process opens and closes.

With this folder in PYTHONPATH every Python imports it at its start, before it has threads: a profile function can only
be given to a thread from within. Where PAGEMESH_CALLS names a folder, the process

- writes `<process id>.process` there, its parent and its command;
- looks into the file `window` every few milliseconds: the name in it is that of the open window, nothing means none;
- writes `<window>.<process id>.open` when it begins to record, and `<window>.<process id>.calls` when it has ended.

A function counts whose frame was entered, resumed, left, or called something: one that waited since before the window
as well. Other frames on the stack do not.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

VARIABLE: Final = "PAGEMESH_CALLS"
_POLL_S: Final = 0.005

_seen: dict[int, CodeType] | None = None
"""Code that was executed in the open window. By identity: code of different files may be equal."""


def _note(frame: FrameType, event: str, argument: object) -> None:
    if (seen := _seen) is not None:
        code = frame.f_code
        seen[id(code)] = code
        if frame.f_back is not None:
            # A loop that waits since before the window has no event of its own when a function returns to it.
            code = frame.f_back.f_code
            seen[id(code)] = code


def _follow(folder: Path) -> None:
    global _seen
    window = ""
    while folder.exists():
        wanted = _read(folder / "window")
        if wanted != window:
            executed, _seen = _seen, {} if wanted else None
            if executed is not None:
                _write(folder, f"{window}.{os.getpid()}.calls", _functions(executed))
            if wanted:
                _write(folder, f"{wanted}.{os.getpid()}.open", None)
            window = wanted
        time.sleep(_POLL_S)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _functions(executed: dict[int, CodeType]) -> list[tuple[str, int]]:
    """Files and first lines; the other threads may still add to the dictionary."""
    found = {(code.co_filename, code.co_firstlineno) for code in list(executed.values())}
    return sorted(each for each in found if "/pagemesh/" in each[0])


def _write(folder: Path, name: str, content: object) -> None:
    """Whole or not at all."""
    part = folder / f"{name}.part"
    try:
        part.write_text(json.dumps(content))
        part.rename(folder / name)
    except OSError:
        # Whoever asked is gone, and the folder with it.
        return


def _record(folder: Path) -> None:
    threading.setprofile(_note)
    sys.setprofile(_note)
    process = {"parent": os.getppid(), "command": sys.orig_argv}
    _write(folder, f"{os.getpid()}.process", process)
    # Not as a Thread, which would be recorded.
    _thread.start_new_thread(_follow, (folder,))


if VARIABLE in os.environ:
    _record(Path(os.environ[VARIABLE]))
