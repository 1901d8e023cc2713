"""A query of Spark that writes stores of Python: its folder and its batches, without Spark.

What a start does, and from which batch, is what `MicroBatchExecution` does: it goes on behind the
newest entry of the commit log.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.batches.driver import begin_batch, verify_committed
from redis_state.batches.streams import known_partitions, layout_of, list_store
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.config import Config
from redis_state.ids import StateStoreProviderId
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.store.provider import StateStoreProvider
from tests.contract.stream_support import QUERY, Driver
from tests.support.redis_server import RedisServer

KEY = ("k string",)
RETAINED = 20
# In a line of its own, behind a number or not, or between two backquotes.
_COMMAND = re.compile(r"^\s*(?:\d+\. )?(redis-state .+)$|`(redis-state [^`]+)`", re.MULTILINE)
Text = Callable[[int], str]


def text_of(batch: int) -> str:
    """Text that a batch appends to the state of each partition."""
    return f"b{batch}"


@dataclass
class Store:
    """A store that a query writes; each partition's state is what all batches have added to it.

    Attributes:
        first: The batch that it begins with.
        initial: Whether version 1 is an initial state.
        written: What the newest batch has left in each partition.
    """

    client: Client
    config: Config
    partitions: int = 2
    first: int = 0
    initial: bool = False
    query: str = QUERY
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    written: dict[int, str] = field(default_factory=dict)

    @property
    def gen(self) -> str:
        found = checkpoint_gen(self.client, self.name)
        assert found is not None
        return found

    def start(self) -> None:
        """Prepares the query's program before the query starts."""

    def run(self, batch: int, planned: str, text: Text) -> None:
        """Run one batch in every partition."""
        raise NotImplementedError

    def expected(self, batches: int, text: Text = text_of) -> dict[int, str]:
        """After so many batches, without a failure."""
        added = ["b-initial"] if self.initial else []
        added += [text(batch) for batch in range(self.first, batches)]
        return dict.fromkeys(range(self.partitions), "".join(f"{one} " for one in added))


class Processors(Store):
    """A store of `transform_with_state`."""

    def start(self) -> None:
        given = {
            "partitions": self.partitions,
            "first": self.first,
            "before": int(self.initial),
            "layout": layout_of(KEY, initial=self.initial),
        }
        self.driver = Driver(self.client, self.config, **given)
        self.driver.name = self.name
        self.plan = self.driver.plan()
        self.run_id = str(uuid.uuid4())
        if self.initial and known_partitions(self.client, self.gen, tenant="") is None:
            list_store(self.client, self.plan)
            owner = register_run(self.client, self.gen, uuid.uuid4().hex, by_driver=True)
            for partition in range(self.partitions):
                task = self.driver.task(self.plan, owner.run_id, -1, partition=partition)
                task.text = "b-initial"
                task.take_initial(owner)

    def run(self, batch: int, planned: str, text: Text) -> None:
        for partition in range(self.partitions):
            task = self.driver.task(
                self.plan,
                self.run_id,
                batch,
                partition=partition,
                planned=planned,
                text=text(batch),
                query=self.query,
            ).run()
            self.written[partition] = f"{(task.read or b'').decode()}{text(batch)} "


class Batches(Store):
    """A store of `foreach_batch_with_state_store`."""

    def run(self, batch: int, _planned: str, text: Text) -> None:
        begun = begin_batch(
            self.client,
            self.config,
            name=self.name,
            number=batch,
            first=self.first,
            partitions=self.partitions,
            partitions_default=self.partitions,
            layout=json.dumps("key k string; codec msgpack"),
            codec_name="msgpack",
            query_id=self.query,
        )
        for partition in range(self.partitions):
            id_ = StateStoreProviderId(begun.store_id(partition), begun.run.run_id)
            provider = StateStoreProvider(
                id_, config=self.config, run=begun.run, client=self.client
            )
            store = provider.get_store(begun.version)
            after = f"{store.get('log') or ''}{text(batch)} "
            store.put("log", after)
            store.commit()
            self.written[partition] = after
        verify_committed(self.client, begun)


class Query:
    """A query, its checkpoint folder and its stores."""

    def __init__(self, server: RedisServer, folder: Path, id_: str = QUERY) -> None:
        self.server = server
        self.folder = folder
        self.id = id_
        self.config = options.parse({"url": server.url, "versionsToRetain": str(RETAINED)})
        self.client = Client(self.config)
        self.stores: list[Store] = []
        self._clock = 1000
        for log in ("offsets", "commits"):
            (folder / log).mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": id_}))

    def close(self) -> None:
        self.client.close()

    def add(self, kind: type[Store], **given: object) -> Store:
        made = kind(self.client, self.config, query=self.id, **given)  # type: ignore[arg-type]  # fields of it
        self.stores.append(made)
        return made

    @property
    def committed(self) -> int | None:
        """The newest batch of the commit log."""
        return max((int(path.name) for path in (self.folder / "commits").iterdir()), default=None)

    def start(self, until: int, text: Text = text_of) -> None:
        """Go on behind the newest committed batch, and stop before another one."""
        newest = self.committed
        for store in self.stores:
            store.start()
        for batch in range(0 if newest is None else newest + 1, until):
            entry = self.folder / "offsets" / str(batch)
            if not entry.exists():
                self._clock += 1
                entry.write_text(str(self._clock))
            for store in self.stores:
                if batch >= store.first:
                    store.run(batch, entry.read_text(), text)
            (self.folder / "commits" / str(batch)).write_text("v1")

    def check(self, batches: int, text: Text = text_of) -> None:
        """The state is as if nothing had ever failed."""
        for store in self.stores:
            assert store.written == store.expected(batches, text)

    def arguments(self) -> list[str]:
        return ["--url", self.server.url, "--checkpoint", str(self.folder)]

    def doctor(self, *arguments: str) -> int:
        return main(["doctor", *self.arguments(), *arguments])

    def recover(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
        """Do what `doctor` prints, until there is nothing to do; gives the commands."""
        done: list[list[str]] = []
        capsys.readouterr()
        while (status := self.doctor(*arguments)) != 0:
            said = capsys.readouterr().out
            assert status == PROBLEMS_STATUS
            found = commands_in(said)
            assert found, said
            assert len(done) < 5, said
            for command in found:
                assert follow(command) == 0, (command, capsys.readouterr().err)
                done.append(command)
        capsys.readouterr()
        return done


def commands_in(text: str) -> list[list[str]]:
    """The commands that a message or a page prints, as words behind `redis-state`."""
    return [
        shlex.split(alone or inside, comments=True)[1:] for alone, inside in _COMMAND.findall(text)
    ]


def follow(command: Sequence[str]) -> int:
    """Run a printed command. Nobody waits three minutes here, as the message also allows."""
    wants_force = command[0] in ("rewind", "restore", "import") and "--force" not in command
    return main([*command, *(["--force"] if wants_force else [])])
