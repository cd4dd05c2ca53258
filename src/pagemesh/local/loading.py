"""Loading what a process is made of without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around imports: meanwhile no garbage is collected, and what is there at their end is not looked at again.

    Modules stay until the process ends. The collector would walk them again and again: while they grow in number,
    which makes a start longer, and later in pauses that every stream waits for.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
