"""What `pagemesh up` prints when it cannot be printed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from pagemesh.cli.up.console import Console


def test_a_full_disk_ends_no_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    has_returned = False
    # What is still to be written when the file is closed cannot be written either.
    with suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        Console().part_back("decode-0")
        has_returned = True
    assert has_returned


def test_whoever_read_and_has_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        with pytest.raises(BrokenPipeError):
            Console().part_back("decode-0")
