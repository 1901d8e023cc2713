"""The rows that a batch wrote: those of a replay, and those of production."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state.errors import NotFoundError, UsageError
from redis_state.files import Folder, folder_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_METADATA = "_spark_metadata"
_COMPACT = ".compact"


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """Rows of a batch that only one side wrote: the replay or production.

    Attributes:
        only_replayed: Rows that the replay wrote more often, each as often as the difference.
        only_produced: Rows that production wrote more often.
    """

    only_replayed: DataFrame
    only_produced: DataFrame


def produced(spark: SparkSession, path: str, batch: int, *, form: str = "parquet") -> DataFrame:
    """Returns the rows of a file sink in a batch, or all rows of a folder without a sink's log.

    Raises:
        NotFoundError: The sink's log does not have the batch.
    """
    folder = folder_at(path)
    log = folder / _METADATA
    if log.items() is None:
        return spark.read.format(form).load(path)
    added = _added(log, batch)
    if added is None:
        raise NotFoundError(
            f"reading what batch {batch} wrote",
            found=f"the log of the sink in {path} does not have it any more",
            advice="Compare without --production, or give a folder with the rows of this batch.",
        )
    if not added:
        return spark.read.format(form).load(path).limit(0)
    return spark.read.format(form).load(sorted(added))


def _added(log: Folder, batch: int) -> set[str] | None:
    """Returns the files that a batch added; ``None`` if the sink's log no longer has the batch.

    An entry `<n>.compact` has the files of all batches up to n (`CompactibleFileStreamLog`).
    """
    whole = _paths(log, str(batch))
    if whole is not None:
        return whole
    compacted = _paths(log, f"{batch}{_COMPACT}")
    before = batch - 1
    while compacted is not None and before >= 0:
        entry, older = _paths(log, str(before)), _paths(log, f"{before}{_COMPACT}")
        if entry is None and older is None:
            return None
        compacted -= (entry or set()) | (older or set())
        if older is not None:
            break
        before -= 1
    return compacted


def _paths(log: Folder, name: str) -> set[str] | None:
    raw = log.read(name)
    if raw is None:
        return None
    entries = [json.loads(line) for line in raw.decode().splitlines()[1:]]
    return {one["path"] for one in entries if one.get("action", "add") == "add"}


def compare(replayed: DataFrame, made: DataFrame) -> OutputDiff:
    """Compares rows by the names of their columns.

    Raises:
        UsageError: The columns differ.
    """
    if sorted(replayed.columns) != sorted(made.columns):
        raise UsageError(
            "comparing the output",
            found=(
                f"the replay has the columns {', '.join(replayed.columns)}, and production "
                f"{', '.join(made.columns)}"
            ),
            advice="Compare without --production, because the columns themselves changed.",
        )
    same = made.select(*replayed.columns)
    return OutputDiff(replayed.exceptAll(same), same.exceptAll(replayed))
