"""MkDocs hook that adds pages outside of docs/ to the site, and rewrites the links to them.

In the sources a link works in a checkout, relative to its file: `../README.md` in a page of docs/,
`docs/design.md` in the README. This hook rewrites links between pages to the pages of the site. A
link to another file of the repository goes to `repo_url`, if mkdocs.yml has one; otherwise only its
text stays. A link to a missing file is a warning, which fails a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
OUTSIDE = {
    "README.md": "quick-start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Names of pages on the site, by their paths in the repository."""

_FENCE = re.compile(r"^ *(```|~~~)")
_LINK = re.compile(r"(?P<code>(`+).+?\2)|\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<to>[^()\s]+)\)")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_log = logging.getLogger("mkdocs.plugins.site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie outside of docs/."""
    for place, name in OUTSIDE.items():
        text = (ROOT / place).read_text("utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Rewrites the links of a page that leave docs/, or come from outside of it."""
    places = {name: place for place, name in OUTSIDE.items()}
    name = page.file.src_uri
    place = places.get(name, f"{DOCS}/{name}")

    def turned(found: re.Match[str]) -> str:
        to = found["to"]
        if found["code"] or not to or re.match(r"[a-z]+:|#", to):
            return found[0]
        path, _, anchor = to.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        if target.startswith(f"{DOCS}/") or target in OUTSIDE:
            on_site = OUTSIDE.get(target) or target.removeprefix(f"{DOCS}/")
            link = posixpath.relpath(on_site, posixpath.dirname(name) or ".")
            return f"[{found['text']}]({link}{'#' + anchor if anchor else ''})"
        if not (ROOT / target).exists():
            _log.warning("%s has a link to %s, which is not a file", place, target)
        if config.repo_url:
            return f"[{found['text']}]({config.repo_url.rstrip('/')}/blob/HEAD/{target})"
        return found["text"]

    return "\n".join(_outside_of_fences(markdown, turned))


def on_page_content(html: str, **_: object) -> str:
    """Unescapes bars in table cells, including code, as GitHub does."""
    return _CELL.sub(lambda found: found[0].replace(r"\|", "|"), html)


def _outside_of_fences(markdown: str, turned: Callable[[re.Match[str]], str]) -> Iterator[str]:
    """Yields the page, piece by piece, with rewritten links in all text outside of fenced code."""
    prose: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        found = _FENCE.match(line)
        if not fence and not found:
            prose.append(line)
            continue
        if prose:
            yield _LINK.sub(turned, "\n".join(prose))
            prose = []
        if found and not fence:
            fence = found[1]
        elif found and found[1] == fence:
            fence = ""
        yield line
    if prose:
        yield _LINK.sub(turned, "\n".join(prose))
