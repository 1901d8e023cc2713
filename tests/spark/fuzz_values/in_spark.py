"""The ways in through `transform_with_state` and `transform_columns_with_state`, in tasks."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

import redis_state
from tests.spark.fuzz_values.operators import INDEX, table
from tests.spark.fuzz_values.processors import (
    OUT,
    ROWS,
    STATES,
    Keeper,
    answers_of,
    compared,
    told_of,
    values_of,
)
from tests.spark.fuzz_values.schemas import Case, Kind
from tests.spark.fuzz_values.texts import text, text_of_scalar
from tests.spark.fuzz_values.ways_out import Findings
from tests.spark.streams import Streams, run_to_end

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def keep_in_spark(streams: Streams, cases: Sequence[Case], form: str, url: str) -> Findings:
    """Run one batch of a query over the cases, and compare what it got back from its state.

    Args:
        form: One of `processors.FORMS`, or ``columns``.
    """
    named = form if form == "columns" else f"{form} in Spark"
    values = [[value for value, _ in values_of(case, named)] for case in cases]
    columns = {
        f"x{at}": (case.variable, [rows[row % len(rows)] if rows else None for row in range(ROWS)])
        for at, (case, rows) in enumerate(zip(cases, values, strict=True))
    }
    source = streams.input(f"{form} {uuid.uuid4().hex}", INDEX)
    source.add([{"k": row, "v": row} for row in range(ROWS)])
    given = table(streams.spark, columns).withColumnRenamed("i", "row")
    rows = source.stream(streams.spark).withColumnRenamed("k", "row").drop("v")
    frame = _frame(rows.join(sf.broadcast(given), "row"), cases, form, url)
    answers = answers_of(_run(streams, frame))
    found = Findings()
    for at, case in enumerate(cases):
        what = f"seed {case.seed}, {case.variable.ddl}"
        for row in range(ROWS):
            wanted = text(case.variable, columns[f"x{at}"][1][row])
            for which, answer in enumerate(answers[row][at]):
                compared(found, f"{named} {STATES[which]}", what, answer, wanted)
    return found


def _frame(rows: DataFrame, cases: Sequence[Case], form: str, url: str) -> DataFrame:
    store = f"fuzz {uuid.uuid4().hex}"
    if form != "columns":
        return redis_state.transform_with_state(
            rows, Keeper(cases, None), store=store, key="row", schema=OUT, url=url, partitions=2,
            rows=form,  # type: ignore[arg-type]  # one of them
        )  # fmt: skip
    kinds = [case.variable for case in cases]
    state = ", ".join(f"x{at} {kind.ddl}" for at, kind in enumerate(kinds))
    return redis_state.transform_columns_with_state(
        rows, _columns_keeper(kinds), store=store, key="row", state=state, schema=OUT, url=url,
        partitions=2,
    )  # fmt: skip


def _columns_keeper(kinds: Sequence[Kind]) -> Callable[[Any, pa.Table], pa.Table]:
    """A function that puts each column of each row alone, with nulls in the others."""

    def keep(state: redis_state.ColumnState, given: pa.Table) -> pa.Table:
        told = []
        for row in range(given.num_rows):
            key = given["row"].slice(row, 1)
            told.append(
                json.dumps([[_told(state, key, given, row, at)] for at in range(len(kinds))])
            )
        return pa.table({"row": given["row"], "told": pa.array(told, pa.string())})

    def _told(state: Any, key: Any, given: pa.Table, row: int, at: int) -> str:
        one = given.slice(row, 1).drop_columns(["row"])
        alone = pa.table(
            [
                column if other == at else pa.nulls(1, column.type)
                for other, column in enumerate(one.columns)
            ],
            names=one.column_names,
        )
        state.remove(key)

        def read() -> Any:
            found = state.get(key)
            return None if all(column.null_count for column in found.columns) else found

        def shown(found: pa.Table | None) -> str:
            return "NULL" if found is None else text_of_scalar(kinds[at], found[f"x{at}"][0])

        return told_of(shown, lambda: state.put(key, alone), read)

    return keep


def _run(streams: Streams, frame: DataFrame) -> list[Row]:
    found: list[Row] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(batch.collect())

    checkpoint = streams.checkpoint(uuid.uuid4().hex)
    writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    run_to_end(writer.option("checkpointLocation", str(checkpoint)).start)
    return found
