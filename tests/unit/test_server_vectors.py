"""The table of good and bad servers, which the JVM adapter is tested with too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redis_state.backend.server import check_info
from redis_state.errors import ConfigError

CASES = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "servers.json").read_text("utf-8")
)["cases"]
URL = "redis://127.0.0.1:6379/0"


@pytest.mark.parametrize("case", CASES, ids=[json.dumps(case["info"]) for case in CASES])
def test_as_in_the_table(case: dict[str, Any]) -> None:
    if "refused" not in case:
        check_info(URL, case["info"])
        return
    with pytest.raises(ConfigError) as caught:
        check_info(URL, case["info"])
    assert [words for words in (*case["refused"], URL) if words not in str(caught.value)] == []
