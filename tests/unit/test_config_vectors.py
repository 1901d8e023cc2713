"""The table of good and bad options, which the JVM adapter is tested with too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redis_state import config
from redis_state.errors import ConfigError
from redis_state.url import Endpoint

CASES = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "options.json").read_text("utf-8")
)["cases"]
URL = "redis://localhost:6379/0"


@pytest.mark.parametrize("case", CASES, ids=[json.dumps(case["options"]) for case in CASES])
def test_options_match_the_table(case: dict[str, Any]) -> None:
    options = {"url": URL, **case["options"]}
    if "refused" in case:
        with pytest.raises(ConfigError) as caught:
            config.parse(options)
        message = str(caught.value)
        assert message.startswith("[REDIS_CONFIG] ")
        assert [words for words in case["refused"] if words not in message] == []
        assert "geheim" not in message
    else:
        parsed = config.parse(options)
        for name, expected in case["gives"].items():
            stem, _, operator = name.partition("stateTtl.")
            if operator and not stem:
                assert parsed.state_ttl_of(int(operator)) == expected
                continue
            value = getattr(parsed, config.option_named(name).python_name)
            assert (value.url if isinstance(value, Endpoint) else value) == expected


def test_every_option_has_a_case() -> None:
    known = {name for case in CASES for name in (*case["options"], *case.get("gives", ()))}
    assert set(config.options()) <= known
