"""The references of the site by name: each is Markdown, written from what the program itself is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tools.docsite import command_line, errors_table, http_routes, rpcs

_REFERENCES: Final[dict[str, Callable[[], str]]] = {
    "command-line": command_line.markdown,
    "errors": errors_table.markdown,
    "grpc": rpcs.index_markdown,
    "http": http_routes.markdown,
}


def markdown(name: str) -> str:
    """The reference that a page asks for with `<!-- reference: NAME -->`.

    Raises KeyError for one that there is not, which ends the build.
    """
    return _REFERENCES[name]()
