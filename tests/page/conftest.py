"""A mesh whose model has a name that must never become markup, and a real Chromium that looks at it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.mesh.harness import Mesh, running_mesh
from tests.support.browser import running_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
MODEL = '<img src=x onerror="window.harmed=1">'
"""Under which the demo model is served here."""

WAIT_MS = 20_000
REFUSED = re.compile(r"Failed to load resource: .* status of (\d+)")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A prefill and a decode worker behind Envoy."""
    arguments = ["--model", str(DEMO), "--no-sample", "--served-model-name", MODEL]
    with running_mesh(tmp_path_factory.mktemp("mesh"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's, or another one of the machine."""
    with running_chromium() as browser:
        yield browser


class Look:
    """One person's look at a page, and what the browser has to complain of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.refused: list[int] = []
        """Statuses of answers that the browser calls errors."""
        self.hosts: set[str] = set()
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.goto(url)

    def _note(self, kind: str, text: str) -> None:
        refused = REFUSED.match(text)
        if refused:
            self.refused.append(int(refused[1]))
        elif kind in ("error", "warning"):
            self.complaints.append(text)

    def say(self, text: str) -> None:
        """Send a message, without waiting for the answer."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send").click()

    def wait_for_answer(self) -> None:
        """Until a message can be sent again."""
        self.page.get_by_role("button", name="Send").wait_for()

    @property
    def answer(self) -> str:
        """Text of the last answer, as far as it is there."""
        return self.page.locator(".message.assistant > .text").last.inner_text()

    def more_fields(self, json: str) -> None:
        """Further fields of the next requests."""
        self.page.evaluate("document.getElementById('settings').open = true")
        self.page.get_by_label("Further fields").fill(json)


@pytest.fixture
def open_page(chromium: Browser, mesh: Mesh) -> Iterator[OpenPage]:
    """Opens the page for a test; afterwards nothing may have gone wrong in any browser."""
    opener = OpenPage(mesh, chromium)
    yield opener
    opener.close()


class OpenPage:
    """Opens pages, each in a context of its own."""

    def __init__(self, mesh: Mesh, chromium: Browser) -> None:
        self._mesh = mesh
        self._chromium = chromium
        self._open: list[tuple[BrowserContext, Look, str]] = []

    def __call__(self, url: str | None = None, **context: object) -> Look:
        """A look at the page, with fields of Playwright's contexts."""
        opened = self._chromium.new_context(**context)  # type: ignore[arg-type]
        address = url or self._mesh.url
        look = Look(opened, address + "/")
        self._open.append((opened, look, urlsplit(address).netloc))
        return look

    def close(self) -> None:
        """Check and close all that were opened."""
        for context, look, host in self._open:
            harmed = look.page.evaluate("window.harmed")
            context.close()
            assert look.complaints == []
            assert look.hosts == {host}, "only the gateway may be asked for anything"
            assert harmed is None, "text became markup"
