"""A query to fork: a planted state with real blocks, and a checkpoint folder as Spark writes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.config import Config
from redis_state.forks import Forked
from redis_state.forks import fork as fork_query
from redis_state.ids import PartitionId, StoreId
from redis_state.live import Reader
from redis_state.maintain.compaction import add_snapshot
from redis_state.protocol import PartitionClient
from tests.contract.planting import GEN, QUERY_ID, Planted, uid
from tests.support.interruptions import Interrupted
from tests.support.redis_server import RedisServer

SCHEMA_FILE = "0_3f1c"
PROVIDER = "org.apache.spark.sql.redisstate.RedisStateStoreProvider"

Rows = dict[str, int]


class Scene:
    """A query with one operator; batch `b` adds a key, and changes another one.

    Attributes:
        with_ids: Whether the commit log names attempts, as in checkpoint format 2.
    """

    def __init__(self, server: RedisServer, folder: Path, *, with_ids: bool = False) -> None:
        self.server, self.folder, self.with_ids = server, folder, with_ids
        self.raw: redis.Redis = server.client()
        self.planted = Planted(self.raw)
        self.planted.register()
        self.query = keys.query(GEN)
        self.raw.hset(self.query, mapping={"id": QUERY_ID, "epoch": "1"})
        self.batch = -1
        self._describe()

    def _describe(self) -> None:
        """Writes what Spark writes before the first batch."""
        root = self.folder.absolute()
        path = hashlib.sha256(f"file:{root}/state".encode()).hexdigest()
        schemas = [f"file:{root}/state/0/_stateSchema/default/{SCHEMA_FILE}"]
        store = {"storeName": "default", "numPartitions": 4, "stateSchemaFilePaths": schemas}
        self.write("metadata", json.dumps({"id": QUERY_ID}))
        self.write("state/_redis_state", json.dumps({"format": 1, "gen": GEN, "path": path}))
        operator = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}
        for name in ("metadata", "v2/0", "v2/5"):
            self.write(f"state/0/_metadata/{name}", f"v2\n{json.dumps(operator)}")
        for name in (SCHEMA_FILE, "5_99aa"):
            self.write(f"state/0/_stateSchema/default/{name}", "a schema")
        self.write("state/0/0/_metadata/schema", "a schema")
        for number in range(4):
            (self.folder / f"state/0/{number}").mkdir(exist_ok=True)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, batches: int = 1) -> None:
        """Runs some batches of the query."""
        for _ in range(batches):
            batch = self.batch + 1
            rows = [({"carrier": f"k{batch}"}, {"count": batch, "total": 0.5})]
            rows.append(({"carrier": "newest"}, {"count": batch, "total": 0.5}))
            self.planted.commit(batch + 1, rows)
            self.log(batch)

    def log(self, batch: int) -> None:
        """Writes the log entries of a batch."""
        conf = {"spark.sql.streaming.stateStore.providerClass": PROVIDER}
        planned = json.dumps({"batchTimestampMs": batch, "conf": conf})
        self.write(f"offsets/{batch}", f'v1\n{planned}\n{{"logOffset":{batch}}}')
        self.write(f"sources/0/{batch}", f"v1\n{batch}")
        ids = {"0": [[uid(batch + 1)]] * 4} if self.with_ids else None
        committed: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        committed |= {"stateUniqueIds": ids} if ids else {}
        self.write(f"commits/{batch}", f"v2\n{json.dumps(committed)}")
        self.batch = batch

    def maintain(self) -> None:
        """Adds snapshots, and drops what no retained version needs."""
        with self.client() as client:
            for number in range(4):
                partition = PartitionClient(client, self.planted.id(number), versions_to_retain=2)
                add_snapshot(partition, partition.open("", None))
                partition.retain()

    @contextmanager
    def client(self) -> Iterator[Client]:
        client = Client(self.config)
        yield client
        client.close()

    @property
    def config(self) -> Config:
        return config.parse({"url": self.server.url})

    def fork(self, to: Path | str, **given: Any) -> Forked:
        return fork_query(self.server.url, str(self.folder), to=str(to), **given)

    def expected(self, batch: int) -> Rows:
        """The rows after a batch."""
        return {f"k{one}": one for one in range(batch + 1)} | {"newest": batch}

    def rows(self, gen: str) -> Rows:
        """The rows of a checkpoint at its newest version."""
        with Reader(self.config) as reader:
            items = reader.query(gen).operator(0).items()
            return {key["carrier"]: value["count"] for key, value in items}

    def fields(self, gen: str) -> dict[str, str]:
        found: Mapping[bytes, bytes] = self.raw.hgetall(keys.query(gen))  # type: ignore[assignment]  # its stub
        return {name.decode(): value.decode() for name, value in found.items()}

    def manifests(self, gen: str) -> list[dict[str, str]]:
        """The fields of each partition of a checkpoint."""
        found = []
        for number in range(4):
            id_ = PartitionId(StoreId(gen, 0), number)
            raw: Mapping[bytes, bytes] = self.raw.hgetall(keys.meta(id_))  # type: ignore[assignment]  # its stub
            found.append({name.decode(): value.decode() for name, value in raw.items()})
        return found

    def check_complete(self, gen: str, *, batch: int) -> None:
        """A fork is there for ever, reads as its parent did, and its pins last."""
        assert self.rows(gen) == self.expected(batch)
        assert self.raw.ttl(keys.query(gen)) == -1
        for number, manifest in enumerate(self.manifests(gen)):
            id_ = PartitionId(StoreId(gen, 0), number)
            assert manifest["g"].split(" ")[:2] == [GEN, str(batch + 1)]
            assert self.raw.ttl(keys.meta(id_)) == -1
        for manifest in self.manifests(GEN):
            version, _, expires, kind, *idents = manifest[f"x:{gen}"].split(" ")
            assert (version, expires, kind) == (str(batch + 1), "0", "fork")
            assert all(gen in manifest[f"y:{ident}"].split(" ") for ident in idents)
        assert json.loads(self.fields(GEN)[f"fork:{gen}"])["version"] == batch + 1
        listed: Mapping[bytes, bytes] = self.raw.hgetall(keys.checkpoints())  # type: ignore[assignment]  # its stub
        assert gen.encode() in listed
        assert listed[f"{gen}:0:default".encode()] == b"4"


def killed_at(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], at: int, *, after: bool
) -> bool:
    """Runs a call that ends before or after a pipeline; returns whether it got so far."""
    left = at
    original = Client._exchange

    def exchange(self: Client, attempted: str, commands: list[Command]) -> list[Any]:
        nonlocal left
        left -= 1
        if left == -1 and not after:
            raise Interrupted
        replies = original(self, attempted, commands)
        if left == -1:
            raise Interrupted
        return replies

    with monkeypatch.context() as patch:
        patch.setattr(Client, "_exchange", exchange)
        try:
            run()
        except Interrupted:
            return True
    return False
