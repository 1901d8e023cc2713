"""The last message after a mistake of a user is what docs/errors.md shows, word for word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.mistake_scene import Scene
from tests.contract.mistakes import MISTAKES, all_of_them, title_of
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
SECTION = re.compile(r"^### Python and the command line\n(.*?)(?=^### |^## |\Z)", re.DOTALL | re.M)
SHOWN = re.compile(
    r"^(?:#### (?P<part>.+?)|\*\*(?P<title>.+?)\*\*\n```text\n(?P<text>.*?)\n```)$",
    re.DOTALL | re.M,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def shown() -> list[tuple[str, str, str]]:
    """Part, title and text, in the order of the page."""
    (section,) = SECTION.findall(PAGE.read_text("utf-8"))
    found, part = [], ""
    for match in SHOWN.finditer(section):
        part = match["part"] or part
        if match["title"]:
            found.append((part, match["title"], match["text"]))
    return found


def test_page_lists_every_mistake() -> None:
    wanted = [(part, title_of(one)) for part, several in MISTAKES.items() for one in several]
    assert [(part, title) for part, title, _ in shown()] == wanted
    assert len(wanted) > 40


@pytest.mark.parametrize("mistake", all_of_them(), ids=lambda one: one.__name__)
def test_last_message_of_a_mistake_equals_the_page(
    mistake: Callable[[Scene], str], tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    scene = Scene(tmp_path, start_redis)
    text = scene.plain(mistake(scene))
    assert text == {title: text for _, title, text in shown()}.get(title_of(mistake))
    assert "secret'" not in text
    assert not re.search(r"Traceback|Exception|\bNone\b", text)
