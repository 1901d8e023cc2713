"""The table of good and bad servers, which the JVM adapter is tested with too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from redis_state.backend import needs
from redis_state.backend.durability import Durability
from redis_state.backend.server import judge
from redis_state.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TABLE = json.loads((ROOT / "tests" / "vectors" / "servers.json").read_text("utf-8"))
CASES = TABLE["cases"]
TWINS = json.loads((ROOT / "tests" / "vectors" / "twins.json").read_text("utf-8"))
URL = "redis://127.0.0.1:6379/0"


def judged(case: dict[str, Any]) -> list[str]:
    durability = Durability.of(case.get("durability", "none"))
    return judge(URL, case["info"], durability, lambda: case["settings"])


@pytest.mark.parametrize("case", CASES, ids=[json.dumps(case) for case in CASES])
def test_server_checks_match_the_table(case: dict[str, Any]) -> None:
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


def test_checked_commands_match_the_table() -> None:
    assert list(needs.COMMANDS) == TABLE["needed"]


def test_every_command_of_a_job_is_checked() -> None:
    of_the_check = {command[0] for command in TWINS["startCheck"]}
    scripts = (ROOT / "redis_state" / "backend" / "scripts").glob("*.lua")
    called = {
        name
        for text in (script.read_text("utf-8") for script in scripts)
        for name in re.findall(r"redis\.p?call\('([A-Z]+)'", text)
    }
    around = {"MULTI", "EXEC", "EVALSHA", "TIME"}
    assert set(needs.COMMANDS) == of_the_check | called | around


@pytest.mark.parametrize("case", TABLE["limits"], ids=[json.dumps(one) for one in TABLE["limits"]])
def test_limit_checks_match_the_table(case: dict[str, Any]) -> None:
    words = [word.encode() for item in case["settings"].items() for word in item]
    settings = needs.settings_in([words, OSError("no right")])
    assert settings == case["settings"]
    warnings = needs.warnings_of(URL, settings)
    assert len(warnings) == len(case["warns"])
    for warning, expected in zip(warnings, case["warns"], strict=True):
        assert [word for word in (*expected, URL) if word not in warning] == []
    assert (needs.exceeded(settings, case["longest"]) or None) == case["exceeded"]
    hint = needs.hint_of_limits(settings, sent_bytes=case["sent"], argument_bytes=case["longest"])
    assert [word for word in case["hint"] if word not in hint] == []
