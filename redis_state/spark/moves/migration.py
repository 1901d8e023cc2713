"""Moves the state of a stopped query to another provider, in a session with the project's jar."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError, of_jvm
from redis_state.spark.conf import PROVIDER_CLASS, redis_confs
from redis_state.spark.driver_jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from redis_state.option_types import Options

_SPARKS = "org.apache.spark.sql.execution.streaming.state"
TARGETS = {
    "rocksdb": f"{_SPARKS}.RocksDBStateStoreProvider",
    "hdfs-backed": f"{_SPARKS}.HDFSBackedStateStoreProvider",
}
"""Spark's own providers, by their names in `migrate`."""

_ERRORS = "org.redisstate.core.errors."
_POLL_S = 0.2
MoveProgress = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class MovedStore:
    """One store of an operator after a move.

    Attributes:
        name: Spark's name of the operator.
        families: Number of column families that can hold rows.
        rows: Number of keys with a value; a list is one row.
        size: Bytes of keys and values as Spark has them in memory.
        source: Digest of the rows that were read, 32 hexadecimal digits: two sums of XXH64 hashes.
        target: Digest of the rows read back from the target; equal to `source`. A dry run has the
            digest of no rows.
        written: Partitions written by this call. The others existed from an interrupted move.
    """

    operator: int
    name: str
    store: str
    partitions: int
    families: int
    rows: int
    size: int
    source: str
    target: str
    written: int


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of a move, or of its dry run.

    Attributes:
        batch: The last committed batch, whose state was moved.
        source: Provider class of the checkpoint.
        target: Provider class of the new checkpoint.
        format: Spark's checkpoint format, 1 or 2.
    """

    batch: int
    source: str
    target: str
    format: int
    stores: tuple[MovedStore, ...]

    @property
    def rows(self) -> int:
        """Returns the number of rows of all stores."""
        return sum(store.rows for store in self.stores)

    @property
    def size(self) -> int:
        """Returns the bytes of keys and values of all stores."""
        return sum(store.size for store in self.stores)


def migrate(
    spark: SparkSession,
    checkpoint: str,
    to_checkpoint: str,
    *,
    to: str,
    dry_run: bool = False,
    progress: MoveProgress | None = None,
    **options: Unpack[Options],
) -> Migration:
    """Makes a new checkpoint with the same state in another provider.

    The query must not run. Its checkpoint is not changed. The new folder becomes a checkpoint in
    one last step. If this call is interrupted, Spark refuses the folder, and the same call
    continues the move. Then start the query with the new folder and the provider of `to`.

    Args:
        spark: A session with the project's jar, as `configure` makes it. If the state is in Redis,
            the session has the options of that server.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.
        to_checkpoint: A folder that does not exist.
        to: ``redis://…`` as in `configure`, ``rocksdb`` or ``hdfs-backed``.
        dry_run: Only reads, counts and checks.
        progress: Called repeatedly with the number of finished partitions, of all partitions, and
            of moved rows.
        **options: Options of the server that `to` names; see `configure`.

    Raises:
        ConfigError: The folder is not a checkpoint, its last batch is not committed, or the target
            cannot take the state. Nothing was changed.
        FormatError: A file of the checkpoint cannot be read, or the written state is not equal.
        FullError: The server has too little memory.
        RedisStateError: Another error of the server.
    """
    made = mover(spark)
    provider = TARGETS.get(to, PROVIDER_CLASS)
    confs = redis_confs({"url": to, **options}) if provider == PROVIDER_CLASS else {}
    move = made(spark._jsparkSession, checkpoint, to_checkpoint, provider, confs)
    return carried_out(move, dry_run=dry_run, progress=progress)


def mover(spark: SparkSession, name: str = "CheckpointMove") -> Any:
    """Returns the jar's class that moves checkpoints, or another class of its package.

    Raises:
        ConfigError: The session has no such class.
    """
    made = java_class(spark, f"move.{name}")
    if made is None:
        raise ConfigError(
            "moving the state of a checkpoint",
            found="the session uses Spark Connect, or has no jar of redis-state",
            advice="Make a classic session with redis_state.configure.",
        )
    return made


def carried_out(move: Any, *, dry_run: bool, progress: MoveProgress | None) -> Migration:
    """Runs a move and returns its result.

    Raises:
        RedisStateError: The error of the JVM.
    """
    return _report(_watched(move, dry_run=dry_run, progress=progress))


def _watched(move: Any, *, dry_run: bool, progress: MoveProgress | None) -> str:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            _tell(move, progress)

    watcher = threading.Thread(target=watch, name="redis-state-migrate", daemon=True)
    if progress is not None:
        watcher.start()
    try:
        with named_errors():
            text = str((move.dryRun() if dry_run else move.run()).json())
            _tell(move, progress)
            return text
    finally:
        done.set()


def _tell(move: Any, progress: MoveProgress | None) -> None:
    if progress is not None:
        counters = move.progress()
        progress(counters.partitionsDone(), counters.partitionsAll(), counters.rows())


@contextmanager
def named_errors() -> Iterator[None]:
    """Converts the errors that the project raises in the JVM."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "java_exception", None)
        if cause is None or not cause.getClass().getName().startswith(_ERRORS):
            raise
        raise of_jvm(cause.getMessage()) from None


def _report(text: str) -> Migration:
    found = json.loads(text)
    names = [one.name for one in fields(MovedStore)]
    listed = [one | {"size": one["bytes"]} for one in found["stores"]]
    stores = tuple(MovedStore(**{name: one[name] for name in names}) for one in listed)
    return Migration(found["batch"], found["from"], found["to"], 1 + found["withIds"], stores)
