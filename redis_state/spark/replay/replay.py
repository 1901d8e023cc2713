"""Runs one batch of a query again, with other code, on a fork of the state before it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError, RedisStateError, UsageError
from redis_state.files import Folder, folder_at, is_local
from redis_state.spark.replay.output import OutputDiff, compare, produced
from redis_state.spark.replay.planned_batch import PlannedBatch, planned_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self, Unpack

    from redis_state.forks import CheckpointDiff
    from redis_state.option_types import Options

_OUTPUT = "replayed-output"
_FORK = "checkpoint"


@dataclass(frozen=True, slots=True)
class Replay:
    """What the function that builds the query is told.

    Attributes:
        batch: The number of the batch.
        checkpoint: Folder of the fork; its checkpoint location is set for the query already.
    """

    batch: int
    checkpoint: str


QueryFunction = Callable[["SparkSession", Replay], Any]
"""Builds the query from its sources on and returns a `DataStreamWriter` that is not started.

Sink, trigger, checkpoint location and name of the writer are replaced.
"""


@dataclass
class Replayed:
    """A batch that ran again. Close it, or use it in a `with` block: then the fork goes.

    Attributes:
        batch: The number of the batch.
        input_rows: Rows that Spark read.
        output: The rows that the batch wrote.
        state: The state behind the batch, against that of production.
        produced: The rows of `output` against production's, if its output was named.
    """

    batch: int
    input_rows: int
    output: DataFrame
    state: CheckpointDiff
    produced: OutputDiff | None = None
    _cleanup: ExitStack = field(default_factory=ExitStack, repr=False)

    def close(self) -> None:
        """Removes the fork and the rows of `output`, unless they were to be kept."""
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_batch(
    spark: SparkSession, build: QueryFunction, batch: PlannedBatch, checkpoint: Folder, output: str
) -> int:
    """Runs exactly the batch that the logs of the fork have planned; returns its input rows.

    Args:
        checkpoint: The fork of the state before the batch, with the plan of the batch.
        output: Folder for the rows, as Parquet.

    Raises:
        UsageError: The function does not return a writer, or the batch failed.
    """
    what = f"replaying batch {batch.number}"
    writer = build(spark, Replay(batch.number, str(checkpoint)))
    if not hasattr(writer, "foreachBatch"):
        raise UsageError(
            what,
            found=f"the function returned a {type(writer).__name__}, not a DataStreamWriter",
            advice="Return `frame.writeStream` with its options, and do not start it.",
        )
    writer = (
        writer.foreachBatch(lambda rows, _: rows.write.mode("overwrite").parquet(output))
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"replay-{batch.number}-{uuid.uuid4().hex[:8]}")
        # Runs the planned batch and no other.
        .trigger(once=True)
    )
    query = writer.start()
    try:
        query.awaitTermination()
    except Exception as error:
        raise UsageError(
            what,
            found=f"the batch failed: {_first_line(error)}",
            advice="Production is as it was. Look at the cause above; run the command again.",
        ) from error
    finally:
        query.stop()
    if not checkpoint.has(f"commits/{batch.number}"):
        raise UsageError(
            what,
            found="Spark ended without the batch",
            advice="Look into its log; production is as it was.",
        )
    return sum(progress.numInputRows for progress in query.recentProgress)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__


def scratch_folder(spark: SparkSession, given: str | None) -> tuple[str, ExitStack]:
    """Returns a folder for the fork and its output, and what removes it.

    Raises:
        ConfigError: The session has executors on other machines, and no folder was given.
    """
    cleanup = ExitStack()
    if given is not None:
        return given.rstrip("/"), cleanup
    if not (spark.conf.get("spark.master", "") or "").startswith("local["):
        raise ConfigError(
            "replaying a batch",
            found="executors on other machines cannot write into a folder of this one",
            advice="Give a new folder that all of them reach, with scratch= or --scratch.",
        )
    made = tempfile.mkdtemp(prefix="redis-state-replay-")
    cleanup.callback(shutil.rmtree, made, ignore_errors=True)
    return made, cleanup
