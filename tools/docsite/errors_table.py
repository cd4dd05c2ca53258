"""The exceptions with what they become over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from pagemesh.errors import PagemeshError
from tools.docsite.cells import table


def markdown() -> str:
    """A row for each, an exception below the one that it is a kind of."""
    rows = [
        (
            "&nbsp;&nbsp;" * depth + f"`{kind.__name__}`",
            f"`{kind.grpc_code}`",
            str(kind.http_status),
            f"`{kind.default_reason}`",
            (kind.__doc__ or "").split("\n\n")[0],
        )
        for depth, kind in _tree(PagemeshError, 0)
    ]
    return table(("exception", "gRPC code", "HTTP", "reason", ""), rows)


def _tree(kind: type[PagemeshError], depth: int) -> Iterator[tuple[int, type[PagemeshError]]]:
    yield depth, kind
    for below in kind.__subclasses__():
        if below.__module__ == PagemeshError.__module__:
            yield from _tree(below, depth + 1)
