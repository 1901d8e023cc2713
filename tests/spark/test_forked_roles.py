"""A fork in every role of Spark: executor, state reader, writer of copies, a change of partitions.

The fork is made by the steps of docs/format.md, section 14, and names segments of its parent only.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.cli.main import main
from redis_state.files import folder_at
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.pins import FORK, fork_partitions, pin_all
from redis_state.recovery.marker import gen_of
from tests.spark.test_checkpoints import NAME, Job, job, use_server
from tests.spark.test_copies import EVERY, wait_for_copy
from tests.support.redis_server import RedisServer

__all__ = ["job", "use_server"]
pytestmark = pytest.mark.spark

FORKED = "forked"
PARTITIONS = 2
VERSION = 5
DAY_MS = 86_400_000


class Fork:
    """A fork of the newest state of a query, begun by hand."""

    def __init__(self, job: Job, server: RedisServer) -> None:
        self.job, self.server = job, server
        self.gen = secrets.token_hex(16)
        self.parent = gen_of(folder_at(str(job.streams.checkpoint(NAME))))
        self.checkpoint = job.streams.checkpoint(FORKED)
        self._make_folder()
        with server.client() as raw:
            self._make_partitions(raw)

    def ids(self, gen: str) -> list[PartitionId]:
        return [PartitionId(StoreId(gen, 0, "default"), number) for number in range(PARTITIONS)]

    def _make_folder(self) -> None:
        # Copies belong to the parent.
        skipped = shutil.ignore_patterns("_redis_state*", "._redis_state*", ".metadata.crc")
        shutil.copytree(self.job.streams.checkpoint(NAME), self.checkpoint, ignore=skipped)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        marker = {"format": 1, "gen": self.gen, "path": self._path_hash()}
        (self.checkpoint / "state" / "_redis_state").write_text(json.dumps(marker))

    def _path_hash(self) -> str:
        spelled = (folder_at(str(self.checkpoint)) / "state").spellings()
        return hashlib.sha256(min(spelled, key=len).encode()).hexdigest()

    def _make_partitions(self, raw: Any) -> None:
        fields = raw.hgetall(keys.query(self.parent))
        fields = {name: value for name, value in fields.items() if name[:3] == b"op:"}
        created = {"created": "1", "marker": "1", "path": self._path_hash(), "id": "", "name": ""}
        raw.hset(keys.query(self.gen), mapping={**fields, **created})
        client = Client(config.parse({"url": self.server.url}))
        try:
            pinned = pin_all(client, self.ids(self.parent), self.gen, VERSION, kind=FORK)
            fork_partitions(client, self.gen, pinned, ttl_ms=DAY_MS)
        finally:
            client.close()
        for id_ in self.ids(self.gen):
            raw.persist(keys.meta(id_))
        assert self.foreign(raw) > PARTITIONS

    def foreign(self, raw: Any) -> int:
        """Number of segments of the parent that the fork names."""
        manifests = [raw.hgetall(keys.meta(id_)) for id_ in self.ids(self.gen)]
        return sum(name[:2] == b"a:" for manifest in manifests for name in manifest)

    def run(self) -> None:
        self.job.run(FORKED)

    def purge_parent(self) -> None:
        """Removes all that the parent has, at once."""
        client = Client(config.parse({"url": self.server.url}))
        try:
            for id_ in self.ids(self.parent):
                client.script("x", script("purge"), [keys.meta(id_)], ["0", self.parent, "1"])
        finally:
            client.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(secrets.token_hex(32))
    return path


def state_of(job: Job, name: str, **options: str) -> list[str]:
    reader = job.streams.spark.read.format("statestore").options(**options)
    frame = reader.load(str(job.streams.checkpoint(name)))
    return sorted(map(str, frame.select("key", "value").collect()))


@pytest.mark.parametrize("signed", [False, True], ids=["not signed", "signed"])
def test_fork_is_read_and_copied_and_restored_without_its_parent(
    job: Job,
    use_server: Callable[..., RedisServer],
    redis_conf: Callable[[dict[str, str]], None],
    secret: Path,
    signed: bool,
) -> None:
    options = {"copyEveryBatches": str(EVERY)} | ({"signingKeyFile": str(secret)} if signed else {})
    redis_conf(options)
    server = use_server()
    job.feed(VERSION)
    job.run()
    fork = Fork(job, server)
    for batch in (VERSION - 2, VERSION - 1):
        older = {"batchId": str(batch)}
        assert state_of(job, FORKED, **older) == state_of(job, NAME, **older) != []
    job.feed(2)
    fork.run()
    job.check()
    own = state_of(job, FORKED)
    # The copy is of the newest version that was opened: its oldest segments are the parent's.
    wait_for_copy(fork.checkpoint, VERSION + 1)
    with server.client() as raw:
        assert fork.foreign(raw) > 0
    job.run()
    job.check()
    assert state_of(job, NAME) == own
    fork.purge_parent()
    server.stop()
    place = ["--url", use_server().url, "--checkpoint", str(fork.checkpoint)]
    place += ["--signing-key-file", str(secret)] if signed else []
    assert main(["restore", *place, "--yes"]) == 0
    job.feed(1)
    job.output.clear()
    fork.run()
    assert min(job.output) == VERSION + 1
    job.check()


def test_fork_is_rescaled_at_its_start(
    job: Job,
    use_server: Callable[..., RedisServer],
    redis_conf: Callable[[dict[str, str]], None],
) -> None:
    server = use_server()
    job.feed(VERSION)
    job.run()
    fork = Fork(job, server)
    job.feed(1)
    redis_conf({"rescaleTo": "3"})
    fork.run()
    job.check()
    redis_conf({"rescaleTo": str(PARTITIONS)})
    job.run()
    job.check()
    assert gen_of(folder_at(str(fork.checkpoint))) not in (fork.gen, fork.parent)
    fork.purge_parent()
    redis_conf({"rescaleTo": "3"})
    job.feed(1)
    fork.run()
    job.check()


def test_fork_whose_parent_is_gone_names_it(
    job: Job, use_server: Callable[..., RedisServer]
) -> None:
    server = use_server()
    job.feed(VERSION)
    job.run()
    fork = Fork(job, server)
    fork.purge_parent()
    job.feed(1)
    with pytest.raises(Exception, match=f"forked from checkpoint {fork.parent}, which does not"):
        fork.run()
