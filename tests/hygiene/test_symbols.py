"""A symbol leads to its file and its lines, however it is defined."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from tools import symbols

TEXT = '''\
"""A module."""

LIMIT, UNIT = 3, "s"
if LIMIT:
    NAMES: dict[str, int] = {
        "a": 1,
    }

class Job:
    size: int = 1

    @property
    def name(self) -> str:
        """Its name."""
        return "getter"

    @name.setter
    def name(self, name: str) -> None:
        raise AttributeError("setter")

try:
    import fast
except ImportError:
    def run() -> None:
        def step() -> None:
            local = 1
        step()
else:
    async def run() -> None: ...'''
"""Its last line has no end."""


def lines(name: str) -> list[str]:
    return [TEXT[start:end] for start, end in symbols.spans(f"pagemesh.a:{name}", TEXT)]


def test_a_module_is_all_of_its_text() -> None:
    assert symbols.spans("pagemesh.a", TEXT) == [(0, len(TEXT))]


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("LIMIT", 'LIMIT, UNIT = 3, "s"\n', 'LIMIT, UNIT = 3, "s"\n'),
        ("UNIT", 'LIMIT, UNIT = 3, "s"\n', 'LIMIT, UNIT = 3, "s"\n'),
        ("NAMES", "    NAMES: dict[str, int] = {\n", "    }\n"),
        ("Job", "class Job:\n", '        raise AttributeError("setter")\n'),
        ("run.step", "        def step() -> None:\n", "            local = 1\n"),
    ],
)
def test_a_symbol_is_whole_lines(name: str, first: str, last: str) -> None:
    (text,) = lines(name)
    assert text.splitlines(keepends=True)[0] == first
    assert text.splitlines(keepends=True)[-1] == last


def test_decorators_and_docstrings_belong_to_a_function_and_each_definition_counts() -> None:
    assert lines("Job.name") == [
        '    @property\n    def name(self) -> str:\n        """Its name."""\n        return "getter"\n',
        "    @name.setter\n    def name(self, name: str) -> None:\n"
        '        raise AttributeError("setter")\n',
    ]
    assert [text.splitlines()[0] for text in lines("run")] == [
        "    def run() -> None:",
        "    async def run() -> None: ...",
    ]


@pytest.mark.parametrize("name", ["Job.size", "Job.nam", "name", "run.step.local", "fast"])
def test_what_is_no_symbol_is_named(name: str) -> None:
    with pytest.raises(LookupError, match=rf"no symbol pagemesh\.a:{name}$"):
        lines(name)


def test_other_ends_of_lines_than_those_of_the_parser_do_not_count() -> None:
    text = 'SEPARATOR = "\u2028\x0c"\ndef f(): ...\n'
    assert [text[start:end] for start, end in symbols.spans("a:f", text)] == ["def f(): ...\n"]


def test_a_symbol_is_found_in_whichever_root_has_its_module(tmp_path: Path) -> None:
    files = [
        tmp_path / "src/pagemesh/rpc/__init__.py",
        tmp_path / "services/decode/pagemesh/decode/messages.py",
        tmp_path / "build/lib/pagemesh/rpc/__init__.py",
        tmp_path / "build/lib/pagemesh/gone.py",
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert symbols.package_roots(tmp_path) == (tmp_path / "services/decode", tmp_path / "src")
    assert symbols.file_of("pagemesh.rpc:serve", tmp_path) == files[0]
    assert symbols.file_of("pagemesh.decode.messages", tmp_path) == files[1]
    with pytest.raises(LookupError, match=r"no symbol pagemesh\.gone:f$"):
        symbols.file_of("pagemesh.gone:f", tmp_path)


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("services/decode/pagemesh/decode/messages.py", "pagemesh.decode.messages"),
        ("src/pagemesh/rpc/__init__.py", "pagemesh.rpc"),
        ("clones/pagemesh/src/pagemesh/local.py", "pagemesh.local"),
    ],
)
def test_a_module_is_named_without_its_root(file: str, module: str) -> None:
    assert symbols.module_of(PurePath(file)) == module
