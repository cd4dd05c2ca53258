"""What a test needs and does not find makes it skip with a sentence, and fail where CI promises it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hygiene.tree import ROOT
from tests.support.needs import NEEDS, lack, need, program, promised

SENTENCE = "prometheus is needed, but there is no promtool: apt-get install --no-install-recommends prometheus"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PAGEMESH_TESTS_REQUIRE", raising=False)
    return tmp_path


def install(programs: Path, name: str) -> None:
    (programs / name).touch(0o755)


def test_what_is_missing_is_a_reason_to_skip(programs: Path) -> None:
    install(programs, "prometheus")
    with pytest.raises(pytest.skip.Exception) as skipped:
        need("prometheus")
    assert skipped.value.msg == SENTENCE


@pytest.mark.parametrize("promise", ["prometheus", "curl, prometheus", "all"])
def test_what_is_missing_is_a_failure_where_it_was_promised(
    programs: Path, monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    install(programs, "prometheus")
    monkeypatch.setenv("PAGEMESH_TESTS_REQUIRE", promise)
    with pytest.raises(pytest.fail.Exception) as failed:
        program("promtool", of="prometheus")
    assert failed.value.msg == f"{SENTENCE} (PAGEMESH_TESTS_REQUIRE promises it)"


def test_what_is_there_is_used(programs: Path) -> None:
    install(programs, "google-chrome")
    assert program("chromium", of="browser") == str(programs / "google-chrome")
    install(programs, "chromium")
    assert program("chromium", of="browser") == str(programs / "chromium")


def test_what_no_program_shows_is_lacked_in_the_words_of_who_looked(programs: Path) -> None:
    with pytest.raises(
        pytest.skip.Exception, match="node is needed, but npm said no: let `npm ci`"
    ):
        lack("node", "npm said no")


def test_a_promise_of_what_no_test_needs_is_refused() -> None:
    with pytest.raises(
        pytest.UsageError, match="names chrome, rust; there are prometheus, browser"
    ):
        promised({"PAGEMESH_TESTS_REQUIRE": "rust,curl,chrome"})
    assert promised({}) == frozenset()


def test_ci_promises_what_it_installs() -> None:
    (names,) = re.findall(r"PAGEMESH_TESTS_REQUIRE=(\S+)", (ROOT / ".ci/run").read_text())
    # What no registry has, and what only `make test-all` needs.
    not_for_ci = {"network namespaces", "container engine", "packages of clients", "vllm"}
    assert promised({"PAGEMESH_TESTS_REQUIRE": names}) == NEEDS.keys() - not_for_ci
