"""tools/site_pages.py: what becomes of links, and which pages of other folders the site has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

from tools import site_pages

ROOT = Path(__file__).resolve().parents[2]
PICTURE_BYTES_MAX = 150_000


@pytest.fixture(scope="module")
def config() -> MkDocsConfig:
    return load_config(str(ROOT / "mkdocs.yml"))


def turned(config: MkDocsConfig, page: str, text: str) -> str:
    file = File(page, str(ROOT / "docs"), str(ROOT / "build"), use_directory_urls=False)
    return site_pages.on_page_markdown(text, Page(None, file, config), config)


@pytest.mark.parametrize(
    ("page", "written", "shown"),
    [
        ("index.md", "[start](../README.md)", "[start](quick-start.md)"),
        ("index.md", "[start](../README.md#quick-start)", "[start](quick-start.md#quick-start)"),
        ("quick-start.md", "[x](docs/design.md)", "[x](design.md)"),
        ("quick-start.md", "[x](CONTRIBUTING.md)", "[x](contributing.md)"),
        ("contributing.md", "[x](docs/api/index.md)", "[x](api/index.md)"),
        ("decisions/0002-second-start.md", "[x](../format.md)", "[x](../format.md)"),
        ("decisions/0002-second-start.md", "[x](../../CHANGELOG.md)", "[x](../changelog.md)"),
        ("design.md", "[x](#7-identity)", "[x](#7-identity)"),
        ("design.md", "[x](https://redis.io)", "[x](https://redis.io)"),
        ("design.md", "![x](pictures/batch.svg)", "![x](pictures/batch.svg)"),
        ("design.md", "the test [`x`](../tests/conftest.py)", "the test `x`"),
        ("design.md", "`[x](../README.md)`", "`[x](../README.md)`"),
        ("design.md", "```text\n[x](../README.md)\n```", "```text\n[x](../README.md)\n```"),
    ],
)
def test_link_is_rewritten_to_the_page_of_the_site(
    config: MkDocsConfig, page: str, written: str, shown: str
) -> None:
    assert turned(config, page, written) == shown


def test_link_to_a_file_leads_to_the_repository() -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    config.repo_url = "https://example.org/redis-state/"
    shown = turned(config, "design.md", "[x](../tests/conftest.py)")
    assert shown == "[x](https://example.org/redis-state/blob/HEAD/tests/conftest.py)"


def test_a_link_to_no_file_is_a_warning(
    config: MkDocsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    turned(config, "design.md", "[x](../tests/nothing.py)")
    assert "docs/design.md has a link to tests/nothing.py" in caplog.text


def test_pages_of_other_folders_are_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    for place, name in site_pages.OUTSIDE.items():
        assert (ROOT / place).is_file()
        assert re.search(rf"^      - [\w ]+: {name}$", settings, re.MULTILINE)


def test_a_bar_in_a_table_is_shown_as_a_bar() -> None:
    shown = site_pages.on_page_content(r"<td><code>a\|b</code></td><p>a\|b</p>")
    assert shown == r"<td><code>a|b</code></td><p>a\|b</p>"


def test_site_loads_nothing_from_another_host() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert re.findall(r"https?://", settings) == []
    assert re.search(r"^  font: false$", settings, re.MULTILINE)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        if picture.suffix == ".png":
            assert picture.stat().st_size < PICTURE_BYTES_MAX
            continue
        addresses = re.findall(r"https?://[^\"]+", picture.read_text("utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}
