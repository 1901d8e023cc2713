"""The example of docs/coordinator.md, run as it stands."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.ids import StateStoreId
from redis_state.protocol import checkpoint_gen
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coordinator.md"
URL = "redis://localhost:6379/0"


def test_the_example_runs(redis_server: RedisServer) -> None:
    client = Client(config.parse({"url": redis_server.url}))
    gen = checkpoint_gen(client, "orders", create=True)
    client.close()
    assert gen is not None
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)
    assert URL in code
    scope: dict[str, object] = {}
    exec(code.replace(URL, redis_server.url), scope)
    assert not any(t.name == "redis-state-heartbeat" for t in threading.enumerate())
    with redis_server.client() as raw:
        key = keys.instance(StateStoreId("orders", 0, 3).partition(gen))
        assert raw.exists(key) == 0, "stop takes it away"
