"""Whether a built site loads anything from elsewhere: `python -m tools.docsite.self_contained build/site`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

# What a browser fetches by itself; a link that a reader follows is none of it.
_FETCHED: Final = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "script": "src", "source": "src",
    "video": "src",
}  # fmt: skip
_FETCHED_RELATIONS: Final = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "preconnect",
    "dns-prefetch",
}
_URL_IN_CSS: Final = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class _Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in _FETCHED:
            self.found.append(named.get(_FETCHED[tag]) or "")
        if tag == "link" and _FETCHED_RELATIONS & set((named.get("rel") or "").split()):
            self.found.append(named.get("href") or "")


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    """Each address outside of the site that a page or a style of it loads, behind the file's name."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Loads()
            parser.feed(path.read_text(encoding="utf-8"))
            found = [url for url in parser.found if re.match(r"(https?:)?//", url)]
        elif path.suffix == ".css":
            found = _URL_IN_CSS.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        for url in found:
            yield f"{path.relative_to(site)}: {url}"


def main() -> int:
    """Print what is loaded from elsewhere; fail if there is anything."""
    found = list(loads_from_elsewhere(Path(sys.argv[1])))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
