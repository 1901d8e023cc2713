"""What error replies mean, on the vectors that the JVM adapter is tested on too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from redis_state.backend.replies import ReplyClass, class_of

ROOT = Path(__file__).parent.parent.parent
VECTORS: list[dict[str, str]] = json.loads(
    (ROOT / "tests" / "vectors" / "replies.json").read_text("utf-8")
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["reply"][:40])
def test_a_reply_has_its_class(vector: dict[str, str]) -> None:
    assert class_of(vector["reply"]).value == vector["class"]


def test_the_page_says_the_same() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8").partition("## Replies of the server")[2]
    rows = [row.split("|")[1:3] for row in page.splitlines() if row.startswith("| ")][1:]
    assert {cell.strip() for cell, _ in rows} == {one.value for one in ReplyClass}
    named = [
        (word, cell.strip()) for cell, words in rows for word in re.findall("`([A-Z]+)`", words)
    ]
    assert len(named) == 18
    for word, name in named:
        assert class_of(f"{word} and more").value == name
