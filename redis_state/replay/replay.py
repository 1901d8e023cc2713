"""Runs one batch of a query again, with other code, on a fork of the state before it."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.config import Config
from redis_state.errors import ConfigError, RedisStateError, UsageError
from redis_state.files import Folder, folder_at
from redis_state.forks.fork import fork_with
from redis_state.maintain.purge import purge
from redis_state.progress import Progress, silent
from redis_state.protocol.runs import checkpoint_gen
from redis_state.recovery.marker import gen_of, has_marker
from redis_state.recovery.query_state import state_of
from redis_state.replay.output import OutputDiff, compare, produced
from redis_state.replay.planned_batch import planned_batch
from redis_state.replay.state import ReplayedState, StateDiff, compare_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self, Unpack

    from redis_state.option_types import Options

_CAUSE_MAX = 500
_LOG = logging.getLogger("redis_state.replay")


@dataclass(frozen=True, slots=True)
class Replay:
    """The batch for which a function builds the query: its argument `replay`.

    Attributes:
        batch: The number of the batch.
        checkpoint: Folder of the fork; its checkpoint location is set for the query already.
    """

    batch: int
    checkpoint: str
    _suffix: str = ""
    _used: set[str] = field(default_factory=set, repr=False)

    def store(self, name: str) -> str:
        """Returns the name that a Python store of production has in the replay.

        A processor of `transform_with_state` needs this name: production's own store refuses other
        queries.
        """
        self._used.add(name)
        return f"{name}{self._suffix}"


QueryFunction = Callable[["SparkSession", Replay], Any]
"""Builds the query from its sources, and returns a `DataStreamWriter` without starting it.

The replay replaces its sink, trigger, checkpoint location and query name.
"""


@dataclass
class Replayed:
    """A batch that ran again. Closing it, or leaving its `with` block, removes the fork.

    Attributes:
        batch: The number of the batch.
        input_rows: Rows that Spark read.
        output: The rows that the batch wrote.
        state: Differences between the state after the batch and that of production.
        produced: Differences between `output` and the rows of production; ``None`` if those were
            not named.
    """

    batch: int
    input_rows: int
    output: DataFrame
    state: StateDiff
    produced: OutputDiff | None = None
    _cleanup: ExitStack = field(default_factory=ExitStack, repr=False)

    def close(self) -> None:
        """Removes the fork and the rows of `output`, except after `keep=True`."""
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def replay(
    spark: SparkSession,
    query: QueryFunction,
    *,
    batch: int,
    checkpoint: str,
    url: str | None = None,
    production: str | None = None,
    production_format: str = "parquet",
    scratch: str | None = None,
    keep: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    **options: Unpack[Options],
) -> Replayed:
    """Runs a batch of a production query again, with other code, beside production.

    A fork of the state before the batch gets Spark's plan of the batch, with the offsets that
    production read, and runs only that batch. Production's checkpoint and state do not change. The
    output is written to Parquet files instead of the function's own sink.

    Args:
        spark: A session with `redis_state.configure`, for the server of the query.
        query: Builds the query; called with the session and a `Replay`.
        batch: A batch that production has committed. Redis must still hold the state before it.
        checkpoint: Production's checkpoint folder.
        url: Production's server; ``None`` uses the server of the environment.
        production: Folder of production's file sink, or a folder with the rows of this batch alone,
            to compare rows, too; ``None`` compares only the state.
        production_format: Format of these files.
        scratch: A folder that does not exist, for fork and output; ``None`` uses a temporary one,
            which needs a local session.
        keep: Leaves fork and output behind.
        storage_options: Options of fsspec for the file systems of both checkpoint folders.
        progress: Called with the name of the work, the units done and the total.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        UsageError: The logs do not have the batch, the function does not build a query, the batch
            fails, or the scratch folder has files.
        NotFoundError: Files that the batch read are gone.
        StateError: Redis does not hold the state before the batch any more.
        RedisStateError: See `redis_state.fork`.
    """
    return replay_with(
        spark,
        options_table.resolve(None, url, options),
        query,
        ReplayRequest(batch, checkpoint, production, production_format, scratch, keep=keep),
        open_folder=partial(folder_at, storage_options=storage_options),
        progress=progress,
    )


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The batch to run again and its folders; see `replay`."""

    batch: int
    checkpoint: str
    production: str | None = None
    production_format: str = "parquet"
    scratch: str | None = None
    keep: bool = False


def replay_with(
    spark: SparkSession,
    config: Config,
    query: QueryFunction,
    request: ReplayRequest,
    *,
    open_folder: Callable[[str], Folder] = folder_at,
    progress: Progress = silent,
) -> Replayed:
    """Runs `replay` with options that are already checked."""
    batch, folder = request.batch, open_folder(request.checkpoint)
    planned = planned_batch(folder, batch)
    planned.check_sources()
    tenant = keys.tenant_of(config.key_prefix)
    root = _scratch(spark, request.scratch, open_folder)
    target = open_folder(f"{root}/checkpoint")
    context = Replay(batch, str(target), f"-replay-{uuid.uuid4().hex[:8]}")
    with ExitStack() as cleanup:
        if not request.keep:
            cleanup.callback(_remove, config, tenant, target, context, open_folder(root))
        with closing(Client(config)) as client:
            stores = [one.name for one in state_of(client, folder, tenant=tenant).stores]
        if batch > 0:
            fork_with(
                config,
                request.checkpoint,
                to=str(target),
                at_batch=batch - 1,
                name=f"replay-of-{batch}",
                stores={name: context.store(name) for name in stores},
                open_folder=open_folder,
                progress=progress,
            )
        planned.copy_to(target)
        rows = run_batch(spark, query, context, target, f"{root}/output")
        output = spark.read.parquet(f"{root}/output")
        found = None
        if request.production is not None:
            form = request.production_format
            made = produced(spark, request.production, batch, form=form)
            found = compare(output, made)
        with closing(Client(config)) as client:
            states = _states(client, folder, target, context, tenant)
        state = compare_states(config, states, batch)
        return Replayed(batch, rows, output, state, found, cleanup.pop_all())


def _states(
    client: Client, production: Folder, target: Folder, context: Replay, tenant: str
) -> list[ReplayedState]:
    """Returns the checkpoints of both sides: of Spark's operators, and of Python stores."""
    found = []
    if has_marker(target) and has_marker(production):
        found.append(ReplayedState("", gen_of(production), gen_of(target)))
    for one in state_of(client, production, tenant=tenant).stores:
        gen = checkpoint_gen(client, context.store(one.name), tenant=tenant)
        if gen is not None:
            found.append(ReplayedState(one.name, one.gen, gen))
    return found


def _remove(config: Config, tenant: str, target: Folder, context: Replay, root: Folder) -> None:
    """Removes the state and the files of a replay, and its pins of production."""
    try:
        with closing(Client(config)) as client:
            gens = [gen_of(target)] if has_marker(target) else []
            named = (
                checkpoint_gen(client, context.store(name), tenant=tenant)
                for name in sorted(context._used)
            )
            for gen in [*gens, *filter(None, named)]:
                purge(client, gen, tenant=tenant)
        root.remove()
    except RedisStateError as error:
        _LOG.warning("not all of a replay was removed: %s", error)


def run_batch(
    spark: SparkSession, build: QueryFunction, context: Replay, checkpoint: Folder, output: str
) -> int:
    """Runs exactly the batch that the logs of the fork have planned; returns its input rows.

    Args:
        checkpoint: The fork of the state before the batch, with the plan of the batch.
        output: Folder for the rows, as Parquet.

    Raises:
        UsageError: The function does not return a writer, or the batch failed.
    """
    what = f"replaying batch {context.batch}"
    writer = build(spark, context)
    if not hasattr(writer, "foreachBatch"):
        raise UsageError(
            what,
            found=f"the function returned a {type(writer).__name__}, not a DataStreamWriter",
            advice="Return `frame.writeStream` with its options, without starting it.",
        )
    writer = (
        writer.foreachBatch(lambda rows, _: rows.write.mode("overwrite").parquet(output))
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"replay-of-{context.batch}{context._suffix}")
        # Runs the planned batch and no other.
        .trigger(once=True)
    )
    query = writer.start()
    try:
        query.awaitTermination()
    except Exception as error:
        raise UsageError(
            what,
            found=f"the batch failed: {_cause(error)}",
            advice="Production is unchanged. Remove the cause, and run the command again.",
        ) from error
    finally:
        query.stop()
    if not checkpoint.has(f"commits/{context.batch}"):
        raise UsageError(
            what,
            found="Spark ended without the batch",
            advice="Read its log. Production is unchanged.",
        )
    return sum(progress.numInputRows for progress in query.recentProgress)


def _cause(error: Exception) -> str:
    """Returns the line with the cause of a failed batch: ours, else the innermost one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "[REDIS_" in line]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if "Caused by:" in line]
    found = (ours or causes[-1:] or lines or [type(error).__name__])[0]
    return found[:_CAUSE_MAX]


def _scratch(spark: SparkSession, given: str | None, open_folder: Callable[[str], Folder]) -> str:
    """Returns an empty folder for the fork and its output.

    Raises:
        ConfigError: The session has executors on other machines, and no folder was given.
        UsageError: The given folder has files.
    """
    if given is None:
        if not (spark.conf.get("spark.master", "") or "").startswith("local"):
            raise ConfigError(
                "replaying a batch",
                found="executors on other machines cannot write to a temporary folder of this one",
                advice="Give a new folder that all machines reach, with scratch= or --scratch.",
            )
        return tempfile.mkdtemp(prefix="redis-state-replay-")
    if open_folder(given).items():
        raise UsageError(
            "replaying a batch",
            found="the scratch folder has files",
            advice="Give a folder that does not exist. Nothing was changed.",
            where=given,
        )
    return given.rstrip("/")
