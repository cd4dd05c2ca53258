"""The document on memory shows what `pagemesh plan` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagemesh.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = re.compile(r"```\npagemesh (.*?)\n```\n```text\n(.*?)```", re.DOTALL)


def test_the_example_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = EXAMPLE.findall((ROOT / "docs/memory.md").read_text(encoding="utf-8"))
    assert main(example[0].split()) == 0
    assert capsys.readouterr().out == example[1]
