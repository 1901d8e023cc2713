"""The scene of a user's mistake: server, checkpoint and command, and the last message from them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis_state
from redis_state import config
from redis_state.backend.client import Client
from redis_state.batches.driver import begin_batch
from redis_state.cli.main import main
from redis_state.errors import RedisStateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import Planted, plant_checkpoint
from tests.support.redis_server import RedisServer

URL = "redis://localhost:6379/0"
UA = {"carrier": "UA"}
NAME = "orders"
QUICK: dict[str, Any] = {"deadline": "1s", "socket_timeout": "200ms"}
_IDS = re.compile(r"\b[0-9a-f]{32}\b")


class Scene:
    """A folder, and servers that are started where a mistake needs one."""

    def __init__(self, folder: Path, start: Callable[..., RedisServer]) -> None:
        self.folder = folder
        self.start = start
        self._known: dict[str, str] = {str(folder): "/data"}

    def server(self, **options: Any) -> RedisServer:
        server = self.start(**options)
        self.call(f"{server.host}:{server.port}", "localhost:6379")
        return server

    def call(self, found: str, name: str) -> None:
        """Replaces `found` by `name` in texts from now on."""
        self._known[found] = name

    def planted(self, server: RedisServer) -> Path:
        """A query `flights` with versions 1 to 3, of which batches 0 to 2 are logged."""
        planted = Planted(server.client())
        planted.register()
        for version in (1, 2, 3):
            planted.commit(version, [(UA, {"count": version, "total": 0.5})])
        return plant_checkpoint(self.folder, batches=3)

    def provider(self, server: RedisServer, **options: Any) -> StateStoreProvider:
        """A store of Python in a process of its own."""
        given = {"url": server.url, **QUICK, **options}
        return StateStoreProvider(StateStoreProviderId(StateStoreId(NAME, 0, 3)), **given)

    def store(self, server: RedisServer, versions: int = 1, **options: Any) -> StateStoreProvider:
        """Makes a provider and commits that many versions of one row."""
        provider = self.provider(server, **options)
        for version in range(versions):
            store = provider.get_store(version)
            store.put("o-1", "open")
            store.commit()
        return provider

    def plain(self, text: str) -> str:
        """As the page shows it."""
        for found, name in self._known.items():
            text = text.replace(found, name)
        text = _IDS.sub("0123456789abcdef0123456789abcdef", text)
        text = re.sub(r"in \d+ tries", "in 5 tries", text)
        # Servers of several versions say some things in other words.
        text = text.replace("self signed certificate", "self-signed certificate")
        text = re.sub(
            r"NOPERM .* to run the '(\w+)' command( or its subcommand)?",
            r"NOPERM this user has no permissions to run the '\1' command",
            text,
        )
        text = re.sub(r"\d+ seconds ago", "12 seconds ago", text)
        text = re.sub(r"epoch \d{13}", "epoch 1763863200000", text)
        return text.strip()


def told(do: Callable[[], object]) -> str:
    """The message of the error that this ends with."""
    try:
        do()
    except RedisStateError as error:
        return str(error)
    raise AssertionError("it did not fail")


def command(*arguments: str) -> str:
    """Returns what a failing command writes to standard error, or else to standard output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    assert status != 0, "the command did not fail"
    return err.getvalue() or out.getvalue()


def read(url: str, **options: Any) -> str:
    """Returns the last line of the error that listing the queries raises."""

    def do() -> None:
        with redis_state.connect(url, **{**QUICK, **options}) as reader:
            reader.queries()

    return told(do)


def begin(server: RedisServer, *, number: int, partitions: int = 4) -> None:
    """Begins a batch as `map_partitions_with_state_store` does."""
    checked = config.parse({"url": server.url, **QUICK})
    with contextlib.closing(Client(checked)) as client:
        begin_batch(
            client,
            checked,
            name="visits per user",
            number=number,
            first=0,
            partitions=partitions,
            partitions_default=4,
            layout=json.dumps("key user string; codec msgpack"),
            codec_name="msgpack",
        )
