"""Rescales the state of a Spark query to another number of partitions, in a new checkpoint."""

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
    """Makes a new checkpoint whose stateful operators have another number of partitions.

    The query must not run. Its checkpoint and state are not changed. The new folder becomes a
    checkpoint in one last step. If this call is interrupted, Spark refuses the folder, and the same
    call writes the rows again. Then start the query with the new folder. The query continues with
    the next batch, and its output is that of a query that always had this number.

    Every row is checked. A row whose partition differs from Spark's hash of its key fails the call.

    Args:
        spark: A session with the project's jar, as `configure` makes it.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.
        to_checkpoint: A folder that does not exist.
        partitions: New number for each operator, regardless of ``spark.sql.shuffle.partitions``.
        url: The server of the new state; ``None`` uses the server of the session.
        dry_run: Only reads, counts and checks.
        progress: See `migrate`.
        **options: Options of the server that `url` names; see `configure`.

    Raises:
        ConfigError: See `migrate`. Also if the checkpoint already has that many partitions, or the
            partition of an operator's rows cannot be determined. Nothing was changed.
        FormatError: A row lies in another partition than its key's; else see `migrate`.
        FullError: The server has too little memory.
        RedisStateError: Another error of the server.
    """
    given = {"url": url, **options}
    confs = redis_confs(given) if url is not None or options else {}
    move = mover(spark)(spark._jsparkSession, checkpoint, to_checkpoint, confs, partitions)
    return carried_out(move, dry_run=dry_run, progress=progress)
