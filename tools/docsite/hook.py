"""What MkDocs does for this site beyond its own: see `mkdocs.yml`.

Pages whose sources lie outside of docs/ are added, links are turned for the site, references are written where
a page asks for one, and each picture comes in a light and a dark edition.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

# MkDocs loads this file by its path: what lies beside it is found by the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docsite import reference, rpcs
from tools.docsite.pages import OUTSIDE, ROOT, forwarding, with_links_for_the_site
from tools.pictures.svg import in_one_scheme

_REFERENCE: Final = re.compile(r"^<!-- reference: ([a-z-]+) -->$", re.MULTILINE)
_PICTURE: Final = re.compile(r"^!\[([^\]\n]+)\]\(([^)\s]*pictures/[\w-]+)\.svg\)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a folder where the navigation names the folder with a star."""
    config.nav = _expanded(config.nav or [])
    return config


def _expanded(items: list[Any]) -> list[Any]:
    return [_expanded_item(item) for item in items]


def _expanded_item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    ((title, inside),) = item.items()
    if inside == "reference/grpc.md":
        services = [f"reference/grpc/{name}.md" for name in rpcs.pages()]
        return {title: [inside, *services]}
    if isinstance(inside, str) and inside.endswith("/*"):
        folder = ROOT / "docs" / inside.removesuffix("/*")
        pages = sorted(folder.glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
        return {title: [path.relative_to(ROOT / "docs").as_posix() for path in pages]}
    return {title: _expanded(inside)} if isinstance(inside, list) else item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere, what leads on from former addresses, and both editions of every picture."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for name, text in rpcs.pages().items():
        files.append(File.generated(config, f"reference/grpc/{name}.md", content=text))
    for name, text in forwarding().items():
        files.append(File.generated(config, name, content=text))
    for picture in sorted((ROOT / "docs/pictures").glob("*.svg")):
        text = picture.read_text(encoding="utf-8")
        for scheme in ("light", "dark"):
            name = f"pictures/{picture.stem}.{scheme}.svg"
            files.append(File.generated(config, name, content=in_one_scheme(text, scheme)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write references, show each picture in the page's own colours, and turn the links."""
    del files
    text = _REFERENCE.sub(lambda match: reference.markdown(match[1]), markdown)
    text = with_links_for_the_site(text, page.file.src_uri, config.extra["repository"])
    return _PICTURE.sub(r"![\1](\2.light.svg#only-light)\n![\1](\2.dark.svg#only-dark)", text)
