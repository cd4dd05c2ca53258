"""A server that speaks as much of the Hugging Face hub's protocol as its client needs to download models."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

MAIN = "a" * 40
OLDER = "b" * 40
"""Commits of every repository."""


@dataclass
class Repository:
    """One model: its files by commit, and who may have them."""

    files: dict[str, dict[str, bytes]]
    refs: dict[str, str] = field(default_factory=lambda: {"main": MAIN, "v1": OLDER})
    token: str | None = None
    """The token that opens it, if it is gated."""


class FakeHub:
    """Repositories by id."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        self.repositories = repositories
        self.fetched: list[str] = []
        """Paths of the files that were sent, in order."""
        self.endpoint = ""

    def answer(self, method: str, url: str, token: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        path = unquote(urlsplit(url).path).strip("/")
        is_api = path.startswith("api/models/")
        model, _, rest = _split(path.removeprefix("api/models/"), is_api)
        repository = self.repositories.get(model)
        if repository is None:
            return _refusal(401, "RepoNotFound")
        if repository.token is not None and token != f"Bearer {repository.token}":
            return _refusal(403, "GatedRepo")
        kind, _, rest = rest.partition("/")
        revision, _, file = rest.partition("/")
        commit = repository.refs.get(revision, revision)
        if commit not in repository.files:
            return _refusal(404, "RevisionNotFound")
        files = repository.files[commit]
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return _json({"id": model, "sha": commit, "siblings": siblings})
        if kind == "tree":
            return _json([_entry(name, content) for name, content in files.items()])
        if file not in files:
            return _refusal(404, "EntryNotFound")
        if method == "GET":
            self.fetched.append(file)
        headers = {"ETag": f'"{_digest(files[file])}"', "X-Repo-Commit": commit}
        return 200, headers, files[file]


def _split(path: str, is_api: bool) -> tuple[str, str, str]:
    owner, _, rest = path.partition("/")
    name, slash, rest = rest.partition("/")
    return f"{owner}/{name}", slash, rest


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _json(content: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


def _refusal(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}"


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(
                self.command, self.path, self.headers.get("Authorization", "")
            )
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
