"""The page's files: all there, and none of them asks anybody else for anything."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from pagemesh.router.console.page import PageFiles

FOLDER = resources.files("pagemesh.router.console").joinpath("assets")
NAMES = sorted(file.name for file in FOLDER.iterdir())
MAX_LINES = 400
NAMESPACES = ("http://www.w3.org/2000/svg",)
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
)


def text_of(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_served_as_what_it_is(name: str) -> None:
    asset = PageFiles().find(name)
    assert asset is not None
    assert asset.data.decode() == text_of(name)
    assert len(text_of(name).splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_nobody_elses_address(name: str) -> None:
    text = text_of(name)
    for namespace in NAMESPACES:
        text = text.replace(namespace, "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(", text) == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_comes_from_outside_can_become_markup(name: str) -> None:
    assert SINKS.findall(text_of(name)) == []
    assert re.findall(r"<[^>]*\s(on\w+|style)=", text_of(name)) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith((".js", ".html"))])
def test_what_a_file_refers_to_is_there(name: str) -> None:
    used = re.findall(r'(?:from "\./|"console/)([\w.]+)"', text_of(name))
    assert set(used) - set(NAMES) == set()
    assert used or name in ("dom.js", "format.js", "api.js", "answer_state.js")


def test_the_page_is_what_no_name_stands_for() -> None:
    page = PageFiles().find("")
    assert page is not None
    assert page.content_type == "text/html; charset=utf-8"
    assert PageFiles().find("page") is None
    assert PageFiles().find("../state.py") is None


def test_a_page_runs_its_own_files_only() -> None:
    page = PageFiles().find("")
    assert page is not None
    policy = dict(page.headers)["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("given", "expected"),
    [("{0}", True), ("W/{0}", True), ('"x", {0}', True), ("*", True), ('"x"', False), ("", False)],
)
def test_a_client_that_has_a_file_is_known_by_its_tag(given: str, expected: bool) -> None:
    asset = PageFiles().find("main.js")
    assert asset is not None
    assert asset.is_known_to(given.format(asset.etag)) is expected
