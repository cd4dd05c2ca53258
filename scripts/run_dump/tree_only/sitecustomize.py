"""Lets this process import pagemesh from one tree alone: takes the installed tree's folders off its path.

With this folder in PYTHONPATH every Python imports it at its start, when the installed packages have added to its path.
"""

from __future__ import annotations

import os
import sys
from typing import Final

VARIABLE: Final = "PAGEMESH_HIDDEN_PATHS"
"""Folders that nothing is to be imported from, with colons between them."""

_hidden = set(os.environ.get(VARIABLE, "").split(os.pathsep))
sys.path[:] = [path for path in sys.path if path not in _hidden]
