"""An `LLM` is a guest: its logs are the program's business."""

from __future__ import annotations

import subprocess
import sys

import pytest

USE = """
import structlog
from pagemesh.telemetry.logs import configure_library_logging
{before}
configure_library_logging()
log = structlog.get_logger("pagemesh.engine")
log.info("memory", num_bytes=5)
log.warning("request failed", request_id="a")
"""


@pytest.mark.parametrize(
    ("before", "out", "err"),
    [
        ("", "", "event='request failed' request_id='a'\n"),
        (
            "import logging; logging.basicConfig(level='INFO', format='%(name)s %(message)s')",
            "",
            "pagemesh.engine event='memory' num_bytes=5\n"
            "pagemesh.engine event='request failed' request_id='a'\n",
        ),
        (
            "structlog.configure(processors=[structlog.processors.KeyValueRenderer()])",
            "num_bytes=5 event='memory'\nrequest_id='a' event='request failed'\n",
            "",
        ),
    ],
    ids=["warnings by default", "as logging is configured", "as structlog is configured"],
)
def test_the_program_decides_what_becomes_of_logs(before: str, out: str, err: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", USE.format(before=before)], capture_output=True, text=True
    )
    assert (completed.stdout, completed.stderr) == (out, err)
