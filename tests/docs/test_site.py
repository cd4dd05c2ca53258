"""The documents as a site: built without a warning, complete, and of itself alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.hygiene.tree import ROOT
from tests.support.browser import running_chromium
from tools.docsite.pages import MOVED
from tools.docsite.self_contained import loads_from_elsewhere

pytestmark = pytest.mark.costly

BUILD_DEADLINE_S = 120


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
    )
    assert built.returncode == 0, built.stderr
    assert "Documentation built" in built.stderr
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """The site on a web server."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join(10)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert list(loads_from_elsewhere(site)) == []


def test_what_a_page_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/x.js"></script><link rel="stylesheet" href="//fonts.example/f">'
        '<a href="https://example.com">a link is followed, not loaded</a><img src="own.png">'
    )
    (tmp_path / "b.css").write_text(
        '@import "https://fonts.example/b.css"; a { background: url(c.png) }'
    )
    assert list(loads_from_elsewhere(tmp_path)) == [
        "a.html: https://cdn.example/x.js",
        "a.html: //fonts.example/f",
        "b.css: https://fonts.example/b.css",
    ]


def test_a_browser_asks_nobody_else_and_finds_what_is_searched(url: str) -> None:
    with running_chromium() as browser:
        opened = browser.new_page()
        asked: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(f"{url}/concepts/batching/")
        opened.get_by_placeholder("Search").first.fill("preempted")
        opened.locator(".md-search-result__item").first.wait_for(timeout=20_000)
        assert [address for address in asked if not address.startswith(url)] == []
        assert len(asked) > 5


def test_links_to_code_lead_to_the_repository(site: Path) -> None:
    assert 'href="https://github.com/pagemesh/pagemesh/tree/main/protos/pagemesh/v1"' in page(
        site, "reference/grpc"
    )
    assert (
        'href="https://github.com/pagemesh/pagemesh/blob/main/src/pagemesh/errors.py"'
        not in page(site, "reference/grpc")
    )


def test_links_between_documents_lead_to_their_pages(site: Path) -> None:
    # From docs/security.md to gateway/README.md, and from services/decode/README.md to docs/survival.md.
    assert 'href="../services/gateway/#tls"' in page(site, "security")
    assert 'href="../../survival/#a-worker-that-stops"' in page(site, "services/decode")


def test_former_addresses_of_pages_lead_to_the_present_ones(site: Path) -> None:
    for old, new in MOVED.items():
        assert f'content="0; url=../{new}/"' in page(site, old)
        assert (site / new / "index.html").exists()


def test_pictures_come_in_the_colours_of_the_page(site: Path) -> None:
    text = page(site, "concepts/batching")
    assert "batching.light.svg#only-light" in text
    assert "batching.dark.svg#only-dark" in text
    assert "prefers-color-scheme" not in (site / "pictures/batching.dark.svg").read_text()


def test_references_are_written(site: Path) -> None:
    assert "max_num_batched_tokens".replace("_", "-") in page(site, "reference/command-line")
    assert "ContextLengthError" in page(site, "reference/errors")
    assert "ChatRequest" in page(site, "reference/http")
    assert "TOOL_CHOICE_REQUIRED" in page(site, "reference/grpc/inference")
    python = page(site, "reference/python")
    assert "Nucleus mass" in python
    assert "num_cached_tokens" in python
