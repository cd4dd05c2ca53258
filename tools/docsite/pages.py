"""Which documents become pages of the site, and where links between them lead there.

Documents are written for whoever reads them in the repository: links are relative to the file, and may lead to
code. In the site some pages stand elsewhere, and code is not there at all: it is linked in the repository's own
pages on the web.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

OUTSIDE: Final = {
    "services/router/README.md": "services/router.md",
    "services/prefill/README.md": "services/prefill.md",
    "services/decode/README.md": "services/decode.md",
    "services/kvstore/README.md": "services/kvstore.md",
    "gateway/README.md": "services/gateway.md",
    "charts/pagemesh/README.md": "deployment/chart.md",
    "models/demo/README.md": "demo-model.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Documents outside of docs/, and the pages that they become."""

MOVED: Final = {"kv-shipping": "kv-transfer"}
"""Former names of pages, and the present ones: addresses that are linked from elsewhere go on leading there."""

_FORWARDING: Final = """<!doctype html>
<title>{page}</title>
<link rel="canonical" href="../{page}/">
<meta http-equiv="refresh" content="0; url=../{page}/">
<a href="../{page}/">{page}</a>
"""

_SOURCES: Final = {page: source for source, page in OUTSIDE.items()}
# Code, in which nothing is a link, or the target of one.
_CODE_OR_LINK: Final = re.compile(
    r"(?P<code>^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$|`[^`\n]+`)|(?<=\]\()(?P<target>[^)\s]+)(?=\))",
    re.MULTILINE | re.DOTALL,
)


def source_of(page: str) -> str:
    """The file in the repository that a page is made from."""
    return _SOURCES.get(page, f"docs/{page}")


def forwarding() -> dict[str, str]:
    """Files of the site that lead from former addresses to the present ones."""
    return {f"{old}/index.html": _FORWARDING.format(page=new) for old, new in MOVED.items()}


def page_of(source: str) -> str | None:
    """The page, or picture, that a file of the repository becomes; None for one that the site does not have."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    return source.removeprefix("docs/") if source.startswith("docs/") else None


def with_links_for_the_site(markdown: str, page: str, repository: str) -> str:
    """The page's text with every link as the site needs it."""
    return map_links(markdown, lambda target: _for_the_site(target, page, repository))


def map_links(markdown: str, change: Callable[[str], str]) -> str:
    """Replace the target of every link and picture; code is left alone."""
    return _CODE_OR_LINK.sub(lambda match: match["code"] or change(match["target"]), markdown)


def _for_the_site(target: str, page: str, repository: str) -> str:
    path, _, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    here = posixpath.dirname(source_of(page))
    named = posixpath.normpath(posixpath.join(here, path))
    if not (ROOT / named).exists():
        # MkDocs has the words for it.
        return target
    behind = f"#{anchor}" if anchor else ""
    known = page_of(named)
    if known is not None and not (ROOT / named).is_dir():
        return posixpath.relpath(known, posixpath.dirname(page) or ".") + behind
    kind = "tree" if (ROOT / named).is_dir() else "blob"
    return f"{repository}/{kind}/main/{named}{behind}"
