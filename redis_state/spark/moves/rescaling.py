"""Another number of partitions for the state of a Spark query, in a new checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.spark.conf import redis_confs
from redis_state.spark.moves.migration import Migration, MoveProgress, carried_out, mover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options


def rescale(
    spark: SparkSession,
    checkpoint: str,
    to_checkpoint: str,
    partitions: int,
    *,
    url: str | None = None,
    dry_run: bool = False,
    progress: MoveProgress | None = None,
    **options: Unpack[Options],
) -> Migration:
    """Make a new checkpoint whose stateful operators have another number of partitions.

    The query must not run. Nothing of its checkpoint is changed, nor of its state. The new folder
    becomes a checkpoint in one step, the last one; if this call is interrupted, Spark refuses the
    folder, and the same call begins its rows anew. Start the query with the new folder then: it
    goes on with the next batch, and gives out what a query gives out that always had this number.

    Every row is looked at: one that does not lie where Spark's hash of its key says ends the call.

    Args:
        spark: A session with our jar, as `configure` makes it.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.
        to_checkpoint: A folder that does not exist.
        partitions: Of each operator from now on, whatever ``spark.sql.shuffle.partitions`` says.
        url: The server of the new state; ``None`` means that of the session.
        dry_run: Only read, count and check.
        progress: As `migrate` takes it.
        **options: Of the server that `url` names, as in `configure`.

    Raises:
        ConfigError: As `migrate`; or the checkpoint has so many partitions already, or it cannot be
            told where the rows of an operator belong. Nothing was changed.
        FormatError: A row does not lie where its key says, or as `migrate`.
        FullError: The server has too little memory.
        RedisStateError: Another error of the server.
    """
    given = {"url": url, **options}
    confs = redis_confs(given) if url is not None or options else {}
    move = mover(spark)(spark._jsparkSession, checkpoint, to_checkpoint, confs, partitions)
    return carried_out(move, dry_run=dry_run, progress=progress)
