"""The document on offline use: its code runs as it stands and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SNIPPET = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", re.DOTALL)


def test_the_snippets_print_what_the_document_says() -> None:
    snippets = SNIPPET.findall((ROOT / "docs/offline.md").read_text(encoding="utf-8"))
    program = "\n".join(code for code, _ in snippets)
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert completed.stdout == "".join(printed for _, printed in snippets), completed.stderr
    assert completed.returncode == 0
    assert len(snippets) == 7
