"""Every block of the documents says what it is, and is run, read, or listed with a reason."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.docs.blocks import (
    LANGUAGES,
    OUTPUT,
    PYTHON,
    SHELL,
    Block,
    all_blocks,
    blocks_in,
    documents,
    indented_code,
)
from tests.docs.listed import Entry, entries, entry_of, is_elsewhere, is_slow
from tests.hygiene.tree import ROOT, name_of

READERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
DATA_BLOCKS = [block for block in all_blocks() if block.language in READERS]


def test_every_block_says_its_language() -> None:
    wrong = [block.place for block in all_blocks() if block.language not in LANGUAGES]
    assert wrong == [], f"the languages are {sorted(LANGUAGES)}; what is shown or printed is text"


def test_no_code_is_only_indented() -> None:
    found = {name_of(path): indented_code(path.read_text(encoding="utf-8")) for path in documents()}
    assert {document: lines for document, lines in found.items() if lines} == {}


@pytest.mark.parametrize("block", DATA_BLOCKS, ids=lambda block: block.place)
def test_data_can_be_read(block: Block) -> None:
    assert READERS[block.language](block.text)


def test_only_programs_and_output_have_options() -> None:
    shown = [block for block in all_blocks() if not block.runs]
    assert [block.place for block in shown if block.options] == []
    for block in all_blocks():
        assert not {"shape", "unordered"} & set(block.options), f"{block.place}: of its output"


@pytest.mark.parametrize("kind", ["elsewhere", "slow"])
def test_what_is_listed_is_there(kind: str) -> None:
    speaking = {entry_of(kind, block) for block in all_blocks()}
    assert [entry for entry in entries(kind) if entry not in speaking] == []


def test_what_is_listed_says_why_and_who_runs_it_or_what_is_tested_instead() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for entry in entries("elsewhere"):
        assert entry.reason
        assert bool(entry.by) != bool(entry.instead), entry
        named = entry.by or entry.instead
        target = named.removeprefix("make ")
        assert target in targets if target != named else (ROOT / named).exists(), entry
    assert all(entry.reason for entry in entries("slow"))


@pytest.mark.parametrize("started", ["gpu", "observability"])
def test_what_no_test_has_started_is_not_said_to_be_run(started: str) -> None:
    guide = (ROOT / "docs/deployment/compose.md").read_text()
    named = f"COMPOSE_FILE=docker-compose.yml:deploy/compose/{started}.yml"
    (block,) = (each for each in blocks_in(guide, "a.md") if named in each.text)
    found = entry_of("elsewhere", block)
    assert found is not None
    assert not found.by


def test_no_block_is_run_elsewhere_and_slow() -> None:
    both = [block.place for block in all_blocks() if is_elsewhere(block) and is_slow(block)]
    assert both == []


def ours_in(block: Block) -> list[str]:
    """Commands of a block that need nothing but a mesh, or not even that."""
    return re.findall(r"^ *(?:pagemesh|curl) .*", block.text, re.MULTILINE)


def test_what_needs_a_program_that_is_not_here_excuses_no_other_command() -> None:
    commands = [entry for entry in entries("elsewhere") if entry.command]
    excused = [block for block in all_blocks() if any(entry.covers(block) for entry in commands)]
    assert {block.place: ours_in(block) for block in excused if ours_in(block)} == {}, (
        "put them into a block of their own"
    )


def test_blocks_are_found_with_their_output_and_options() -> None:
    text = (
        "```sh\necho a\n```\n<!-- docs: shape -->\n```text\na\n```\n\nWords.\n\n"
        "<!-- docs: keep exits=3 -->\n```python\nx\n```\n\nWords.\n\n```text\nnot its output\n```\n"
    )
    program, python, shown = blocks_in(text, "a.md")
    assert (program.language, program.line, program.text) == (SHELL, 1, "echo a\n")
    assert program.output is not None
    assert (program.output.text, program.output.options) == ("a\n", {"shape": ""})
    assert (python.language, python.options) == (PYTHON, {"keep": "", "exits": "3"})
    assert python.output is None
    assert (shown.language, shown.text) == (OUTPUT, "not its output\n")


def test_an_option_that_nobody_knows_is_refused() -> None:
    with pytest.raises(AssertionError, match="<!-- docs: kep --> says what nobody knows"):
        blocks_in("<!-- docs: kep -->\n```sh\na\n```\n", "a.md")


def test_code_that_is_only_indented_is_found() -> None:
    assert indented_code("Words:\n\n    echo a\n") == [3]
    assert indented_code("* an item\n\n    more of it\n") == []


def test_an_entry_covers_one_block_or_all_with_a_command() -> None:
    (block,) = blocks_in("```sh\n# why\nkubectl get pods\nhelm list\n```\n", "a.md")
    assert block.first_line == "kubectl get pods"
    assert Entry("r", command="helm").covers(block)
    assert not Entry("r", command="hel").covers(block)
    (behind,) = blocks_in("```sh\nA=1 \\\n  B_2=x helm list\n```\n", "a.md")
    assert Entry("r", command="helm").covers(behind)
    assert Entry("r", document="a.md", line="kubectl get pods").covers(block)
    assert not Entry("r", document="b.md", line="kubectl get pods").covers(block)
