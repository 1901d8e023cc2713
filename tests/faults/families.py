"""The queries of a kill run, one for each operator family; `feed` has their output."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from tests.faults.feed import SESSION_GAP

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

COUNTED = "k string, n long, what string"
PARTITIONS = 2


@dataclass(frozen=True)
class Query:
    """The mode and the plan of a family's query; a plan that is missing is the sink's."""

    mode: str
    build: Callable[[DataFrame], DataFrame]


def _fresh(frame: DataFrame) -> DataFrame:
    return frame.where("not again")


def _aggregated(frame: DataFrame) -> DataFrame:
    return _fresh(frame).groupBy("k").agg(sf.count("*"), sf.sum("seq"), sf.max("seq"))


def _deduplicated(frame: DataFrame) -> DataFrame:
    return frame.select("k", "seq").dropDuplicates(["k", "seq"])


def _joined(frame: DataFrame) -> DataFrame:
    later = _fresh(frame).select("k", "seq").alias("later")
    earlier = _fresh(frame).select("k", (sf.col("seq") + 1).alias("next")).alias("earlier")
    near = sf.expr("later.k = earlier.k and later.seq = earlier.next")
    return later.join(earlier, near).select("later.k", "later.seq")


def _sessions(frame: DataFrame) -> DataFrame:
    sessions = _fresh(frame).groupBy(sf.session_window("ts", SESSION_GAP), "k")
    counted = sessions.agg(sf.count("*").alias("n"), sf.min("seq").alias("a"), sf.max("seq"))
    return counted.drop("session_window")


def dense(seqs: list[int], expected: int) -> str:
    """Returns "dense" if the numbers continue from `expected`, or else the numbers found."""
    found = sorted(seqs)
    if found == list(range(expected, expected + len(found))):
        return "dense"
    return f"{found} after {expected}"


def _group_step(
    key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    seqs = [int(seq) for frame in frames for seq in frame["seq"]]
    before = state.get[0] if state.exists else 0
    state.update((before + len(seqs),))
    what = dense(seqs, before)
    yield pd.DataFrame({"k": [key[0]], "n": [before + len(seqs)], "what": [what]})


def _grouped(frame: DataFrame) -> DataFrame:
    return (
        _fresh(frame)
        .groupBy("k")
        .applyInPandasWithState(
            _group_step, COUNTED, "n long", "update", GroupStateTimeout.NoTimeout
        )
    )


class Numbered(StatefulProcessor):
    """A value, a list and a map that have to agree about the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._next = handle.getValueState("next", "n long")
        self._seen = handle.getListState("seen", "seq long")
        self._parity = handle.getMapState("parity", "odd long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        seqs = sorted(int(seq) for frame in rows for seq in frame["seq"])
        before = (self._next.get() or (0,))[0]
        after = before + len(seqs)
        self._next.update((after,))
        for seq in seqs:
            self._seen.appendValue((seq,))
            odd = (seq % 2,)
            known = (self._parity.containsKey(odd) and self._parity.getValue(odd)) or (0,)
            self._parity.updateValue(odd, (known[0] + 1,))
        seen = [row[0] for row in self._seen.get()]
        parity = {odd[0]: n[0] for odd, n in self._parity.iterator()}
        what = dense(seqs, before)
        if seen != list(range(after)):
            what = f"{what}; list {seen}"
        if parity != {odd: n for odd, n in ((0, (after + 1) // 2), (1, after // 2)) if n}:
            what = f"{what}; map {parity}"
        yield pd.DataFrame({"k": [key[0]], "n": [after], "what": [what]})


def _transformed(frame: DataFrame) -> DataFrame:
    return (
        _fresh(frame)
        .groupBy("k")
        .transformWithStateInPandas(
            Numbered(), outputStructType=COUNTED, outputMode="Update", timeMode="None"
        )
    )


def processed(frame: DataFrame, store: str) -> DataFrame:
    """Applies the same processor in the Python worker, for the rows of the plan."""
    return redis_state.transform_with_state(
        frame, Numbered(), store=store, key="k", schema=COUNTED, partitions=PARTITIONS
    )


QUERIES = {
    "aggregation": Query("update", _aggregated),
    "deduplication": Query("append", _deduplicated),
    "join": Query("append", _joined),
    "session windows": Query("complete", _sessions),
    "applyInPandasWithState": Query("update", _grouped),
    "transformWithStateInPandas": Query("update", _transformed),
    "transform_with_state": Query("update", _fresh),
    "map_partitions": Query("append", _fresh),
}


def counting(
    stop_at: Callable[[str], None],
) -> Callable[[redis_state.BatchStore, Iterator[dict[str, Any]]], Iterator[dict[str, Any]]]:
    """The function of `map_partitions`; calls `stop_at` after half of a partition's rows."""

    def count(
        store: redis_state.BatchStore, rows: Iterator[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        before: dict[str, int] = {}
        seqs: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            key = row["k"]
            seen = store.get(key) or 0
            before.setdefault(key, seen)
            seqs.setdefault(key, []).append(row["seq"])
            store.put(key, seen + 1)
            if number == 5:
                stop_at(f"rows-{row['batch']}")
        for key in sorted(seqs):
            what = dense(seqs[key], before[key])
            yield {"k": key, "n": store.get(key), "what": what}

    return count
