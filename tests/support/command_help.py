"""What the command line says about its commands."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from functools import cache
from unittest.mock import patch

from pagemesh.cli.main import main


@cache
def help_of(*command: str) -> str:
    """The help of a command, with lines as wide as they need to be; empty when there is no such command."""
    # Its frames are drawn for whoever reads UTF-8.
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with patch.dict(os.environ, COLUMNS="300", NO_COLOR="1"), redirect_stdout(printed):
        try:
            code: object = main([*command, "--help"])
        except SystemExit as end:
            code = end.code
    return printed.buffer.getvalue().decode() if code == 0 else ""
