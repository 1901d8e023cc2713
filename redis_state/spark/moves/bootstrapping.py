"""Bootstraps the state of a query from the rows of a DataFrame, in a new checkpoint."""

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
    MoveProgress,
    carried_out,
    mover,
    named_errors,
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
    """Rows that an operator accepts, or one of its state variables.

    Attributes:
        operator: Number of the operator.
        name: Spark's name of the operator.
        variable: State variable of a processor; ``None`` if the operator has no variables.
        columns: Required columns as DDL; ``None`` if the operator accepts no rows.
        refused: Reason why the operator accepts no rows.
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
    progress: MoveProgress | None = None,
    **options: Unpack[Options],
) -> Migration:
    """Makes a new checkpoint in which the given rows are the state of an operator.

    Use it to begin a query with a state, or to repair a state that is wrong or lost. The query must
    not run. Its checkpoint supplies the logs, the schemas and the state of all other operators, and
    is not changed. The new folder becomes a checkpoint in one last step. If this call is
    interrupted, Spark refuses the folder, and the same call with the same rows repeats the work.
    Then start the query with the new folder.

    Args:
        spark: A session with the project's jar, as `configure` makes it.
        rows: The columns of `bootstrap_columns`, in any order; each key once. For a processor, a
            mapping of state variables to their rows.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.
        to_checkpoint: A folder that does not exist.
        operator: Operator that gets the state; ``None`` if the query has only one.
        mode: ``replace`` keeps no other rows. With rows for all variables, the existing state is
            not even opened. ``merge`` keeps the rows of other keys.
        to: See `migrate`; ``None`` uses the Redis of the session.
        dry_run: Only reads, counts and checks.
        progress: See `migrate`.
        **options: Options of the server that `to` names; see `configure`.

    Raises:
        ConfigError: See `migrate`. Also if the operator accepts no such rows, or they have other
            columns, nulls where the state has none, or a key twice. Nothing was changed.
        FormatError: See `migrate`.
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
    """Lists the rows that `bootstrap` accepts for each operator and state variable.

    Args:
        spark: A session with the project's jar, as `configure` makes it.
        checkpoint: The query's `checkpointLocation`, in any file system that Spark reads.

    Raises:
        ConfigError: The folder is not a checkpoint, or its last batch is not committed.
        FormatError: A file of the checkpoint cannot be read.
    """
    made = mover(spark, _CLASS)
    with named_errors():
        text = str(made.columns(spark._jsparkSession, checkpoint))
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
