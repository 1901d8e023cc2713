"""The table of good and bad servers, which the JVM adapter is tested with too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redis_state.backend.durability import Durability
from redis_state.backend.server import judge
from redis_state.errors import ConfigError

CASES = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "servers.json").read_text("utf-8")
)["cases"]
URL = "redis://127.0.0.1:6379/0"


def judged(case: dict[str, Any]) -> list[str]:
    durability = Durability.of(case.get("durability", "none"))
    return judge(URL, case["info"], durability, lambda: case["settings"])


@pytest.mark.parametrize("case", CASES, ids=[json.dumps(case) for case in CASES])
def test_as_in_the_table(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(ConfigError) as caught:
            judged(case)
        assert [words for words in (*case["refused"], URL) if words not in str(caught.value)] == []
        return
    warnings = judged(case)
    expected = case.get("warns", [])
    assert len(warnings) == len(expected)
    for warning, words in zip(warnings, expected, strict=True):
        assert [word for word in (*words, URL) if word not in warning] == []
