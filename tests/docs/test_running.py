"""What types the documents' commands notices when they do not do what is said."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_in
from tests.docs.desk import Desk, desk_at
from tests.docs.running import Reading

GATEWAY_PORT, KVSTORE_PORT = 18_123, 18_124


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path, {8000: GATEWAY_PORT, 7000: KVSTORE_PORT}) as desk:
        yield desk


@pytest.fixture
def reading(desk: Desk) -> Iterator[Reading]:
    reading = Reading(desk)
    yield reading
    reading.close()


def block(text: str) -> Block:
    (found,) = blocks_in(text, "a.md")
    return found


def test_a_command_that_fails_is_noticed(reading: Reading) -> None:
    with pytest.raises(AssertionError, match=r"a\.md:1: exit code 3, not 0\nfirst"):
        reading.run(block("```sh\necho first\n(exit 3)\necho second\n```\n"))


def test_a_failure_in_the_middle_of_a_pipe_is_noticed(reading: Reading) -> None:
    with pytest.raises(AssertionError, match="exit code 1, not 0"):
        reading.run(block("```sh\nfalse | cat\n```\n"))


def test_pip_finds_what_is_there_and_brings_nothing_new(reading: Reading) -> None:
    reading.run(block("```sh\npip install openai\n```\n"))
    with pytest.raises(AssertionError, match="No matching distribution found for pagemesh-absent"):
        reading.run(block("```sh\npip install pagemesh-absent\n```\n"))


def test_an_exit_code_that_the_document_names_is_expected(reading: Reading) -> None:
    reading.run(block("<!-- docs: exits=3 -->\n```sh\nexit 3\n```\n"))
    with pytest.raises(AssertionError, match="exit code 0, not 3"):
        reading.run(block("<!-- docs: exits=3 -->\n```sh\ntrue\n```\n"))


def test_other_output_than_the_document_shows_is_noticed(reading: Reading) -> None:
    reading.run(block("```sh\necho 1 a\n```\n```text\n1 a\n```\n"))
    with pytest.raises(AssertionError, match=r"a\.md:4: printed:\n2 a"):
        reading.run(block("```sh\necho 2 a\n```\n```text\n1 a\n```\n"))
    reading.run(block("```sh\necho 2 a\n```\n<!-- docs: shape -->\n```text\n1 a\n```\n"))


def test_python_goes_on_where_it_was(reading: Reading) -> None:
    reading.run(block("```python\nx = 3\n```\n"))
    reading.run(block("```python\nprint(x + 4)\n```\n```text\n7\n```\n"))
    with pytest.raises(AssertionError, match=r"(?s)a\.md:1: .*ZeroDivisionError"):
        reading.run(block("```python\nx / 0\n```\n"))


def test_a_program_that_ends_its_process_is_noticed(reading: Reading) -> None:
    with pytest.raises(AssertionError, match="the program ended its process"):
        reading.run(block("```python\nimport os; os._exit(1)\n```\n"))


@pytest.mark.needs("curl")
def test_curl_notices_that_nobody_is_there(reading: Reading) -> None:
    with pytest.raises(AssertionError, match="exit code 7, not 0"):
        reading.run(block("```sh\ncurl http://127.0.0.1:8000/health\n```\n"))


@pytest.mark.needs("curl")
def test_curl_notices_an_errors_status(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        serving = threading.Thread(target=server.handle_request, daemon=True)
        serving.start()
        with (
            desk_at(tmp_path, {8000: server.server_port}) as desk,
            pytest.raises(AssertionError, match="exit code 22, not 0"),
        ):
            Reading(desk).run(block("```sh\ncurl http://127.0.0.1:8000/health\n```\n"))
        serving.join(10)


def test_a_target_that_is_not_listed_is_not_run(reading: Reading) -> None:
    with pytest.raises(AssertionError, match=re.escape("make test: list it in")):
        reading.run(block("```sh\nmake test\n```\n"))


def test_ports_lead_to_the_mesh_that_is_there(desk: Desk) -> None:
    here = desk.here("pagemesh doctor http://127.0.0.1:8000 --kvstore kv-0:7000,kv-1:7000")
    assert (
        here
        == f"pagemesh doctor http://127.0.0.1:{GATEWAY_PORT} --kvstore 127.0.0.1:{KVSTORE_PORT}"
    )
    assert (
        desk.there(f"at http://127.0.0.1:{GATEWAY_PORT} it is") == "at http://127.0.0.1:8000 it is"
    )


def test_what_a_document_starts_itself_gets_ports_of_its_own(desk: Desk) -> None:
    commands = "pagemesh kvstore --port 7000\npagemesh router --kvstore 127.0.0.1:7000 --port 7001"
    desk.prepare(commands, keep=True)
    first = desk.here(commands)
    assert str(KVSTORE_PORT) not in first
    assert "7001" not in first
    desk.prepare("", keep=False)
    assert desk.here("127.0.0.1:7000") == "127.0.0.1:" + re.findall(r"--port (\d+)", first)[0]
    assert desk.here("127.0.0.1:8000") == f"127.0.0.1:{GATEWAY_PORT}"


def test_numbers_that_are_no_ports_stay(desk: Desk) -> None:
    text = "pagemesh sim --num-prompts 8000 --prompt-tokens 7000 # at 10:7000:1"
    assert desk.here(text) == text
