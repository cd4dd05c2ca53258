"""`pagemesh doctor`: asks every process of a running mesh what it is and what it sees, and says what is wrong."""

from __future__ import annotations
