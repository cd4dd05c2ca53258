"""What a log line looks like; in a process of its own, because logging belongs to the whole process."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging, sys
import structlog
from pagemesh.config import ServerConfig
from pagemesh.telemetry.logs import bind_call_ids, configure_logging
from pagemesh.telemetry.spans import read_trace

log = structlog.get_logger("pagemesh.example")
configure_logging(ServerConfig(log_level="info", log_format=sys.argv[1]), "decode")
log.debug("too detailed")
read_trace(f"00-{1:032x}-{1:016x}-01", "what a client wrote, and is no state")
log.info("serving", address="127.0.0.1:1")
bind_call_ids("abc", "0af7")
log.warning("with id")
logging.getLogger("somebody").warning("from a library")
bind_call_ids("", "")
def serve(prompt):
    raise ValueError("broken")
try:
    serve("what the client " + "wrote")
except ValueError:
    log.exception("failed")
"""


def run(log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, log_format],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_has_one_object_per_line() -> None:
    lines = [json.loads(line) for line in run("json")]
    assert [line["event"] for line in lines] == ["serving", "with id", "from a library", "failed"]
    assert all(line["service"] == "decode" for line in lines)
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert [line["level"] for line in lines] == ["info", "warning", "warning", "error"]
    assert lines[0]["address"] == "127.0.0.1:1"
    assert "request_id" not in lines[0]
    assert (lines[1]["request_id"], lines[1]["trace_id"]) == ("abc", "0af7")
    assert not {"request_id", "trace_id"} & lines[3].keys()
    assert "ValueError: broken" in lines[3]["exception"]
    assert "what the client wrote" not in lines[3]["exception"]


def test_console_is_for_people() -> None:
    text = "\n".join(run("console"))
    assert "serving" in text
    assert "too detailed" not in text
    assert "request_id=abc" in text
    assert "ValueError: broken" in text
    assert "what the client wrote" not in text
