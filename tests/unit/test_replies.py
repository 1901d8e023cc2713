"""Meanings of error replies, on the vectors that also test the JVM adapter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from redis_state.backend.replies import ReplyClass, class_of, failure, hint_of
from redis_state.errors import ConfigError, FormatError, FullError, InternalError

ROOT = Path(__file__).parent.parent.parent
VECTORS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "vectors" / "replies.json").read_text("utf-8")
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["reply"][:40])
def test_a_reply_has_its_class(vector: dict[str, Any]) -> None:
    assert class_of(vector["reply"]).value == vector["class"]


ERRORS = {
    "full": FullError,
    "permission": ConfigError,
    "lacking": ConfigError,
    "setting": ConfigError,
    "damaged": FormatError,
    "programming": InternalError,
}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["reply"][:40])
def test_a_reply_becomes_an_error_with_its_advice(vector: dict[str, Any]) -> None:
    reply = vector["reply"].removeprefix("ERR ")
    if vector["class"] in ERRORS:
        error = failure("trying", reply, "PING")
        assert type(error) is ERRORS[vector["class"]]
        text = str(error)
    else:
        text = hint_of(reply)
    assert [word for word in vector.get("says", ()) if word not in text] == []
    assert "hides" not in vector or vector["hides"] not in text
    assert "args beginning" not in text


def test_page_lists_the_same_reply_classes() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8").partition("## Replies of the server")[2]
    rows = re.findall(r"^- \*\*(\w+)\*\*: (.*?) Done: ", page, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in rows} == {one.value for one in ReplyClass}
    named = [(word, name) for name, words in rows for word in re.findall("`([A-Z]+)`", words)]
    assert len(named) == 19
    for word, name in named:
        assert class_of(f"{word} and more").value == name
