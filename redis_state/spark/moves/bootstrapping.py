"""The state of a query from the rows of a DataFrame, in a new checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from redis_state.errors import ConfigError
from redis_state.spark.conf import PROVIDER_CLASS, redis_confs
from redis_state.spark.moves.migration import (
    TARGETS,
    Migration,
    Progress,
    carried_out,
    mover,
    named_error,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

Mode = Literal["replace", "merge"]
_MODES = ("replace", "merge")
_ONLY = -1
_CLASS = "bootstrap.Bootstrap"


@dataclass(frozen=True, slots=True)
class BootstrapColumns:
    """Which rows an operator takes, or one of its state variables.

    Attributes:
        operator: Its number.
        name: Spark's name of the operator.
        variable: Of a processor; ``None`` where the operator has no variables.
        columns: What the rows have to have, as DDL; ``None`` if it takes none.
        refused: Why it takes none.
    """

    operator: int
    name: str
    variable: str | None
    columns: str | None
    refused: str | None


def bootstrap(
    spark: SparkSession,
    rows: DataFrame | Mapping[str, DataFrame],
    checkpoint: str,
    to_checkpoint: str,
    *,
    operator: int | None = None,
    mode: Mode = "replace",
    to: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Migration:
    """Make a new checkpoint in which rows of yours are the state of an operator.

    For a query that is to begin with a state, and to repair a state that is wrong or lost. The
    query must not run. Its checkpoint gives the logs, the schemas and the state of all other
    operators; nothing of it is changed. The new folder becomes a checkpoint in one step, the last
    one; if this call is interrupted, Spark refuses the folder, and the same call with the same rows
    does it again. Start the query with the new folder then.

    Args:
        spark: A session with our jar, as `configure` makes it.
        rows: The columns that `bootstrap_columns` names, in any order; each key once. Of a
            processor a mapping: state variable → its rows.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.
        to_checkpoint: A folder that does not exist.
        operator: Whose state it is; ``None`` where the query has one operator.
        mode: ``replace``: no other rows. Where rows for all variables are given, the state that is
            there is not even opened. ``merge``: rows of other keys stay as they are.
        to: As `migrate` takes it; ``None`` means the Redis of the session.
        dry_run: Only read, count and check.
        progress: As `migrate` takes it.
        **options: Of the server that `to` names, as in `configure`.

    Raises:
        ConfigError: As `migrate`; or the operator takes no such rows, or they have other columns,
            nulls where the state has none, or a key twice. Nothing was changed.
        FormatError: As `migrate`.
        FullError: The server has too little memory.
        RedisStateError: Another error of the server.
    """
    if mode not in _MODES:
        raise ConfigError(
            "giving rows to an operator",
            found=f"mode={mode!r}",
            advice="Give one of: replace, merge.",
        )
    made = mover(spark)
    provider = TARGETS.get(to or "", PROVIDER_CLASS)
    own = to is not None or bool(options)
    confs = redis_confs({"url": to, **options}) if own and provider == PROVIDER_CLASS else {}
    frames = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    move = made(
        spark._jsparkSession,
        checkpoint,
        to_checkpoint,
        provider,
        confs,
        {name: frame._jdf for name, frame in frames.items()},
        _ONLY if operator is None else operator,
        mode == "merge",
    )
    return carried_out(move, dry_run=dry_run, progress=progress)


def bootstrap_columns(spark: SparkSession, checkpoint: str) -> tuple[BootstrapColumns, ...]:
    """Which rows `bootstrap` takes for each operator and state variable of a checkpoint.

    Args:
        spark: A session with our jar, as `configure` makes it.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.

    Raises:
        ConfigError: The folder is no checkpoint, or its last batch is not committed.
        FormatError: A file of the checkpoint cannot be read.
    """
    made = mover(spark, _CLASS)
    try:
        text = str(made.columns(spark._jsparkSession, checkpoint))
    except Exception as error:
        named = named_error(error)
        if named is None:
            raise
        raise named from None
    return tuple(
        BootstrapColumns(
            operator=one["operator"],
            name=one["name"],
            variable=one["variable"] or None,
            columns=one.get("columns"),
            refused=one.get("refused"),
        )
        for one in json.loads(text)
    )
