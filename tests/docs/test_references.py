"""The references have everything that there is."""

from __future__ import annotations

import re

import pytest

from pagemesh import errors
from pagemesh.cli.main import COMMANDS
from pagemesh.router.openapi.document import openapi_document
from tests.hygiene.tree import ROOT
from tests.support.command_help import help_of
from tools.docsite import command_line, errors_table, http_routes, rpcs
from tools.docsite.pages import map_links, with_links_for_the_site

REPOSITORY = "https://example.com/r"


@pytest.mark.parametrize("name", COMMANDS)
def test_all_flags_of_a_command_are_described(name: str) -> None:
    offered = set(re.findall(r"(?<=│ |, )--(?!no-|help)[a-z-]+", help_of(*name.split())))
    flags = [flag for _, found in command_line.areas(COMMANDS[name].settings) for flag in found]
    described = {flag.name.partition("`")[0] for flag in flags}
    assert described == offered
    assert [flag.name for flag in flags if not flag.meaning] == []


def test_all_messages_fields_and_methods_are_described() -> None:
    pages = "\n".join(rpcs.pages().values())
    for path in sorted((ROOT / "protos").rglob("*.proto")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^ *(?:message|enum) (\w+)", text, re.MULTILINE):
            assert re.search(rf"^### (?:\w+\.)*{name}$", pages, re.MULTILINE), name
        for name in re.findall(r"^service (\w+)", text, re.MULTILINE):
            assert f"\n## {name}\n" in pages, name
        for name in re.findall(r"^ +rpc (\w+)", text, re.MULTILINE):
            assert f"| `{name}` |" in pages, name
        for name in re.findall(
            r"^ +(?:repeated |optional )?[\w.<>, ]+ (\w+) = \d+;", text, re.MULTILINE
        ):
            assert f"| `{name}` |" in pages, name


def test_comments_of_the_protos_are_there() -> None:
    inference = rpcs.pages()["inference"]
    assert '| `role` | 1 | string | "system", "user", "assistant" or "tool". |' in inference
    assert "| `Generate` | [GenerateRequest](#generaterequest) | stream of" in inference
    assert "| client, gateway |" in inference


def test_all_routes_and_bodies_are_described() -> None:
    document, text = openapi_document(), http_routes.markdown()
    for path, operations in document["paths"].items():
        assert all(f"`{method.upper()} {path}`" in text for method in operations)
    assert all(f"\n### {name}\n" in text for name in document["components"]["schemas"])


def test_all_errors_are_described() -> None:
    text = errors_table.markdown()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = [kind.__name__ for kind in kinds if issubclass(kind, errors.PagemeshError)]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("page", "target", "expected"),
    [
        ("security.md", "../gateway/README.md#tls", "services/gateway.md#tls"),
        ("services/router.md", "../../docs/routing.md#x", "../routing.md#x"),
        ("contributing.md", "docs/architecture.md", "architecture.md"),
        ("routing.md", "decisions/0001-one-namespace-several-roots.md", None),
        ("routing.md", "#here", None),
        ("routing.md", "gone.md", None),
        ("routing.md", "https://grpc.io/docs", None),
        ("grpc-api.md", "../protos/pagemesh/v1/inference.proto",
         f"{REPOSITORY}/blob/main/protos/pagemesh/v1/inference.proto"),
        ("reference/grpc.md", "../../protos/pagemesh/v1", f"{REPOSITORY}/tree/main/protos/pagemesh/v1"),
    ],
)  # fmt: skip
def test_links_are_turned_for_the_site(page: str, target: str, expected: str | None) -> None:
    changed = with_links_for_the_site(f"see [it]({target})", page, REPOSITORY)
    assert changed == f"see [it]({expected or target})"


def test_code_has_no_links() -> None:
    text = "`[a](b)` and\n```sh\n[a](b)\n```\n[a](b)"
    assert map_links(text, str.upper) == "`[a](b)` and\n```sh\n[a](b)\n```\n[a](B)"
