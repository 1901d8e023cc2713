"""docs/state-larger-than-redis.md: its example runs as it stands, within its bound."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import redis

from tests.contract.test_commands_page import environment
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "state-larger-than-redis.md"
BOUND = 1088 << 10
"""As the example has it."""


def test_example_stays_within_the_bound(redis_server: RedisServer, tmp_path: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    text = found[1].replace("redis://localhost:6379/0", redis_server.url)
    text = text.replace("/data/segments", str(tmp_path / "segments"))
    with environment(redis_server, tmp_path), redirect_stdout(io.StringIO()) as out:
        exec(text, {})
    assert out.getvalue() == "16 1000\n"
    raw = redis.Redis.from_url(redis_server.url)
    used = sum(raw.memory_usage(key, samples=0) or 0 for key in raw.scan_iter())
    raw.close()
    assert BOUND / 3 < used < BOUND
    files = sum(one.stat().st_size for one in (tmp_path / "segments").rglob("*.seg"))
    assert files > 2 * BOUND
