"""Arguments of a call of a processor: its rows by key, and the store of their state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state.batches.driver import PARTITIONS_MAX
from redis_state.batches.streams import Inputs, layout_of, time_mode_of
from redis_state.codec.typed_row import TypedKey
from redis_state.errors import UsageError
from redis_state.spark.frames import check_names, named_columns, sql_conf
from redis_state.spark.processor.watermark_plan import watermark_of_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_WHAT = "transform_with_state"


@dataclass(frozen=True, slots=True)
class CalledStore:
    """The store that a call names; see `transform_with_state` for the attributes."""

    name: str
    partitions: int | None
    first_batch_id: int
    url: str | None
    options: Mapping[str, object]

    def check(self) -> None:
        """Checks the numbers.

        Raises:
            UsageError: A number is out of its range.
        """
        first, partitions = self.first_batch_id, self.partitions
        if type(first) is not int or first < 0:
            raise wrong("first_batch_id is not a whole number of 0 or more", "Omit it, or give 0.")
        if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
            raise wrong(
                f"{partitions} partitions were requested",
                f"Give 1 to {PARTITIONS_MAX}, or omit it.",
            )


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The rows of a call by key; see `transform_with_state` for the attributes."""

    df: DataFrame
    key: str | Sequence[str]
    time_mode: str
    ticks: bool
    initial_state: DataFrame | None = None

    def inputs(self, store: str) -> tuple[Inputs, int | None]:
        """Returns the description of the rows, and the delay of their watermark.

        Args:
            store: Name of the store, which is checked too.

        Raises:
            UsageError: Columns, names or the time mode do not fit.
        """
        grouping = named_columns(self.df, self.key, "key")
        if not grouping:
            raise wrong("there is no key column", "Give the column that tells the groups apart.")
        mode = time_mode_of(self.time_mode)
        if mode is None:
            raise wrong(
                f"time_mode is {self.time_mode!r}",
                "Give 'None', 'ProcessingTime' or 'EventTime', as in Spark.",
            )
        check_names(self.df, grouping, store)
        event_time, delay_ms = "", None
        if self.df.isStreaming and mode == "eventtime":
            event_time, delay_ms = watermark_of_plan(self.df, _WHAT)
        schema = self.df.schema
        key_schema = _key_schema([(name, schema[name].dataType) for name in grouping])
        if self.initial_state is not None:
            _check_initial(self.initial_state, self.df, grouping)
        zone = sql_conf(self.df.sparkSession, "session.timeZone")
        return Inputs(grouping, key_schema, mode, zone, event_time), delay_ms

    def layout(self, grouping: Sequence[str]) -> str:
        """Returns the layout of the state, by the types of the key columns."""
        schema = self.df.schema
        columns = [f"{name} {schema[name].dataType.simpleString()}" for name in grouping]
        return layout_of(columns, initial=self.initial_state is not None)


def _key_schema(grouping: Sequence[tuple[str, DataType]]) -> str:
    """Returns the key columns as Spark's JSON.

    Raises:
        UsageError: A column has a type that cannot be a key.
    """
    for name, kind in grouping:
        if any(f'"type":"{nested}"' in kind.json() for nested in ("array", "udt")):
            raise wrong(
                f"the key column '{name}' is of type {kind.simpleString()}",
                "Group by columns without arrays and user-defined types.",
            )
    fields = [
        {"name": name, "type": json.loads(kind.json()), "nullable": True} for name, kind in grouping
    ]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    TypedKey(schema, what="the key of a group")
    return schema


def _check_initial(initial: DataFrame, df: DataFrame, grouping: Sequence[str]) -> None:
    kinds = dict(df.dtypes)
    found = dict(initial.dtypes)
    unlike = [name for name in grouping if found.get(name) != kinds[name]]
    if initial.isStreaming or unlike:
        raise wrong(
            "the initial state is a stream"
            if initial.isStreaming
            else f"the initial state has no key column '{unlike[0]}' of type {kinds[unlike[0]]}",
            "Give a batch DataFrame with the same key columns.",
        )


def wrong(found: str, advice: str) -> UsageError:
    """Returns the error for an argument."""
    return UsageError(_WHAT, found=found, advice=advice)
