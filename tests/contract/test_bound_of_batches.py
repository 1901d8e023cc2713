"""Stores of Python batches with a bound, whose driver acquires the partitions."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError
from tests.contract.test_rescale_store import Query
from tests.support.redis_server import RedisServer


class Bounded(Query):
    """A query whose store has a bound."""

    def __init__(self, client: Client, url: str, folder: Path) -> None:
        super().__init__(client, url)
        self.folder = folder
        self.config = options.parse(
            {"url": url, "redis_memory": "16m", "places_folder": str(folder)}
        )

    def begin_with(self, **given: str) -> None:
        folder = str(self.folder)
        self.config = options.parse({"url": self.url, "places_folder": folder} | given)
        self.begin(1)

    def files(self, gen: str) -> list[Path]:
        return sorted((self.folder / gen).rglob("*.seg"))


def test_batches_begin_within_the_bound(redis_server: RedisServer, tmp_path: Path) -> None:
    with closing(Client(options.parse({"url": redis_server.url}))) as client:
        query = Bounded(client, redis_server.url, tmp_path / "files")
        query.run(0, {"a": 1})
        batch = query.begin(1)
        bounds = [("HGET", keys.meta(id_), "h") for id_ in batch.ids()]
        share = ((16 << 20) - 3 * 65_536) // 3
        found = query.client.call("looking for bounds", bounds)
        assert {one.split(b" ")[0] for one in found} == {b"%d" % share}
        (places,) = query.client.call("reading", [("HGET", keys.query(batch.gen), "places")])
        assert json.loads(places)["folder"] == f"file:{query.folder}"
        assert (query.folder / batch.gen / "_writer").read_text() == batch.gen
        with pytest.raises(ConfigError, match="too few for 3 partitions"):
            query.begin_with(redis_memory="2m")
