"""Each way out of a state: its rows as texts, and what is different, damaged or refused there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import pyarrow as pa

from redis_state.errors import RedisStateError
from redis_state.live import Reader
from redis_state.reader import OperatorState
from tests.spark.fuzz_values.schemas import Kind
from tests.spark.fuzz_values.texts import text, text_of_scalar

Row = tuple[tuple[str, ...], tuple[str, ...]]
"""Texts of the columns of a key, and of its value."""

_SHOWN = 160
_KIND = re.compile(r"\[REDIS_(\w+)\]")
_DAMAGE = frozenset({"FORMAT", "INTERNAL", "STATE_LOST", "VERSION_EXPIRED"})
"""Kinds of errors that no value may lead to."""


@dataclass(slots=True)
class Findings:
    """Findings of a campaign.

    Attributes:
        faults: Descriptions of differences, and of errors that are not refusals.
        refused: Number of values or columns that each way refused by name.
        compared: Number of values that each way returned correctly.
    """

    faults: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)

    def add(self, other: Findings) -> None:
        """Adds the findings of another part."""
        self.faults += other.faults
        self.refused += other.refused
        self.compared += other.compared

    def fault(self, way: str, what: str, found: str) -> None:
        """Note a fault of a way out."""
        self.faults.append(f"{way}: {what}: {found}")

    @contextmanager
    def watching(self, way: str, what: str) -> Iterator[None]:
        """Notes an error of what stands in it, which does not end what comes behind."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever a call raises is what is looked for
            self.failed(way, what, error)

    def failed(self, way: str, what: str, error: Exception) -> None:
        """Note an error: a refusal, or a fault."""
        # A task's error comes as a text.
        kinds = (
            [error.kind.value] if isinstance(error, RedisStateError) else _KIND.findall(str(error))
        )
        if kinds and not _DAMAGE.intersection(kinds):
            self.refused[f"{way}: {what}"] += 1
        else:
            found = str(error)
            shown = found[found.find("[REDIS_") :] if kinds else found[-_SHOWN:]
            self.fault(way, what, f"{type(error).__name__}: {shown[: 2 * _SHOWN]}")


@dataclass(frozen=True, slots=True)
class Expected:
    """The rows of one store of an operator, by Spark.

    Attributes:
        keys: The types of the key columns.
        values: The types of the value columns.
        rows: Sorted.
        labels: For each column, keys first, what a fault calls it.
    """

    keys: Sequence[Kind]
    values: Sequence[Kind]
    rows: Sequence[Row]
    labels: Sequence[str]

    @property
    def kinds(self) -> list[Kind]:
        """The types of all columns."""
        return [*self.keys, *self.values]

    def flat(self) -> list[tuple[str, ...]]:
        """The rows of all columns."""
        return sorted(key + value for key, value in self.rows)


class Out:
    """All ways out of one state, against what Spark has in it.

    Args:
        state: At which version it is read is `version`.
        table: Its name in SQL.
        narrowed: The same state, of some of its columns.
    """

    def __init__(
        self,
        reader: Reader,
        state: OperatorState,
        expected: Expected,
        version: int,
        table: str,
        narrowed: Callable[[list[str]], OperatorState] | None = None,
    ) -> None:
        self._narrowed = narrowed
        self.reader = reader
        self.state = state
        self.expected = expected
        self.version = version
        self.table = table
        self.found = Findings()
        self.readable = list(range(len(expected.kinds)))
        """Columns that Arrow has all values of, so that whole tables can be asked for them."""

    def check(self, *, briefly: bool = False) -> Findings:
        """Checks every way out; a way that fails does not end the others.

        Args:
            briefly: Whether to check only rows and tables.
        """
        every: Sequence[Callable[[], None]] = (
            self._items, self._column_by_column, self._arrow, self._scan, self._pandas, self._get,
            self._get_many, self._changes, self._history, self._sql, self._of_columns,
        )  # fmt: skip
        for way in every[::2][:2] if briefly else every:
            with self.found.watching(way.__name__.strip("_"), "the whole call"):
                way()
        return self.found

    def _rows_of(self, pairs: Iterable[tuple[Any, Any]]) -> list[Row]:
        keys, values = self.expected.keys, self.expected.values
        return sorted(
            (
                tuple(text(kind, one) for kind, one in zip(keys, _parts(key), strict=True)),
                tuple(text(kind, one) for kind, one in zip(values, _parts(value), strict=True)),
            )
            for key, value in pairs
        )

    def compare(self, way: str, rows: Sequence[Sequence[str]], columns: Sequence[int]) -> None:
        """Compare the sorted texts of some columns with those that are expected."""
        wanted = sorted(tuple(row[at] for at in columns) for row in self.expected.flat())
        rows = sorted(map(tuple, rows))
        self.found.compared[way] += len(rows) * len(columns)
        if rows == wanted:
            return
        if len(rows) != len(wanted):
            self.found.fault(way, "rows", f"{len(rows)}, not {len(wanted)}")
        for place, at in enumerate(columns):
            ours = Counter(row[place] for row in rows)
            theirs = Counter(row[place] for row in wanted)
            if ours != theirs:
                shown = (next(iter(one))[:_SHOWN] for one in (ours - theirs, theirs - ours))
                self.found.fault(way, self.expected.labels[at], ", not ".join(shown))
                return
        self.found.fault(way, "rows", "the columns are those of other rows")

    def _all(self) -> list[int]:
        return list(range(len(self.expected.kinds)))

    def _items(self) -> None:
        rows = self._rows_of(self.state.items(version=self.version))
        self.compare("items", [key + value for key, value in rows], self._all())

    def _scan(self) -> None:
        found = [
            tuple(map(text, self.expected.kinds, row.values()))
            for row in self.state.scan(version=self.version)
        ]
        self.compare("scan", found, self._all())

    def _column_by_column(self) -> None:
        """A column that cannot be read must not be in the way of the others."""
        names = self._names()
        for at, (name, kind) in enumerate(zip(names, self.expected.kinds, strict=True)):
            what = self.expected.labels[at]
            with self.found.watching("scan of a column", what):
                rows = self.state.scan(columns=[name], version=self.version)
                self.compare("scan of a column", [(text(kind, row[name]),) for row in rows], [at])
            self.readable.remove(at)
            with self.found.watching("to_arrow of a column", what):
                table = self.state.to_arrow(columns=[name], version=self.version)
                table.validate(full=not kind.has("string", "collated"))
                texts = [(text_of_scalar(kind, scalar),) for scalar in table.column(0)]
                self.readable = sorted([*self.readable, at])
                self.compare("to_arrow of a column", texts, [at])

    def _names(self) -> list[str]:
        """The names of a table's columns, as docs/reading.md has them."""
        key, value = self.state.types(version=self.version)
        assert key is not None
        assert value is not None
        names: list[str] = []
        for name in (
            *key.names, *(f"value.{one}" if one in key.names else one for one in value.names)
        ):  # fmt: skip
            numbered = (f"{name}.{number}" for number in count(2))
            names.append(next(one for one in (name, *islice(numbered, 99)) if one not in names))
        return names

    def _arrow(self) -> None:
        names = self._names()
        wanted = [names[at] for at in self.readable]
        table = self.state.to_arrow(columns=wanted, version=self.version)
        self.compare("to_arrow", self._of_table(table, self.readable), self.readable)

    def _of_table(self, table: pa.Table, places: Sequence[int]) -> list[tuple[str, ...]]:
        columns = [
            [text_of_scalar(self.expected.kinds[at], scalar) for scalar in column]
            for at, column in zip(places, table.columns, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def _pandas(self) -> None:
        names = self._names()
        wanted = [names[at] for at in self.readable]
        frame = self.state.to_pandas(columns=wanted, version=self.version)
        self.found.compared["to_pandas"] += 1
        if frame.shape != (len(self.expected.rows), len(wanted)):
            self.found.fault("to_pandas", "shape", str(frame.shape))

    def _get(self) -> None:
        keys = self.expected.keys
        for key, _ in list(self.state.items(version=self.version)):
            ours = tuple(text(kind, one) for kind, one in zip(keys, _parts(key), strict=True))
            self._one("get", ours, self.state.get(key, version=self.version))

    def _get_many(self) -> None:
        keys = [key for key, _ in self.state.items(version=self.version)]
        values = self.state.get_many(keys, version=self.version)
        for key, value in zip(keys, values, strict=True):
            pairs = zip(self.expected.keys, _parts(key), strict=True)
            self._one("get_many", tuple(text(kind, one) for kind, one in pairs), value)

    def _one(self, way: str, key: tuple[str, ...], value: Any) -> None:
        wanted = dict(self.expected.rows)[key]
        if value is None:
            self.found.fault(way, " and ".join(self._keys()), f"no value of {key}"[:_SHOWN])
            return
        ours = tuple(map(text, self.expected.values, _parts(value)))
        self.found.compared[way] += len(ours)
        if ours != wanted:
            self.found.fault(way, "value", f"{ours}, not {wanted}"[: 2 * _SHOWN])

    def _of_columns(self) -> None:
        """The calls that give dicts, of the columns that have a form in Python."""
        names = self._names()
        if self._narrowed is None or len(self.readable) in (0, len(names)):
            return
        state = self._narrowed([names[at] for at in self.readable])
        kinds = [self.expected.kinds[at] for at in self.readable]
        pairs = list(state.items(version=self.version))
        self.compare("items of columns", _texts(kinds, pairs), self.readable)
        changed = [
            (one.key, one.after)
            for one in state.diff(-1, self.version - 1)
            if one.after is not None
        ]
        self.compare("diff of columns", _texts(kinds, changed), self.readable)
        if self.readable[: len(self.expected.keys)] != list(range(len(self.expected.keys))):
            return
        keys = [key for key, _ in pairs]
        with self.found.watching("get_many of columns", " and ".join(self._keys())):
            values = state.get_many(keys, version=self.version)
            found = list(zip(keys, values, strict=True))
            self.compare("get_many of columns", _texts(kinds, found), self.readable)

    def _keys(self) -> Sequence[str]:
        return self.expected.labels[: len(self.expected.keys)]

    def _changes(self) -> None:
        """The change feed and the difference from nothing to the last batch are all rows."""
        last: dict[tuple[str, ...], Any] = {}
        for batch in self.state.changes(since=-1):
            if batch.number < self.version:
                for key, value in batch:
                    pairs = zip(self.expected.keys, _parts(key), strict=True)
                    last[tuple(text(kind, one) for kind, one in pairs)] = (key, value)
        rows = self._rows_of([pair for pair in last.values() if pair[1] is not None])
        self.compare("changes", [key + value for key, value in rows], self._all())
        changed = [(one.key, one.after) for one in self.state.diff(-1, self.version - 1)]
        rows = self._rows_of(changed)
        self.compare("diff", [key + value for key, value in rows], self._all())

    def _history(self) -> None:
        wanted = dict(self.expected.rows)
        for key, _ in list(self.state.items(version=self.version))[:4]:
            pairs = zip(self.expected.keys, _parts(key), strict=True)
            ours = tuple(text(kind, one) for kind, one in pairs)
            found = [one for one in self.state.history(key) if one.batch < self.version]
            self.found.compared["history"] += 1
            newest = tuple(map(text, self.expected.values, _parts(found[0].value)))
            if newest != wanted[ours]:
                what = f"{newest}, not {wanted[ours]}"
                self.found.fault("history", "value", what[: 2 * _SHOWN])

    def _sql(self) -> None:
        kinds = self.expected.kinds
        # SQL has no place for long intervals: such columns do not end the statement of the others.
        some = [at for at in self.readable if not kinds[at].has("day-time")]
        for places in (some, *([at] for at in self.readable if at not in some)):
            with self.found.watching("sql", self.expected.labels[places[0]] if places else ""):
                self.compare("sql", self._selected(places), places)

    def _selected(self, places: Sequence[int]) -> list[tuple[str, ...]]:
        names = self._names()
        wanted = ", ".join(f'"{names[at]}"' for at in places)
        if not wanted:
            return [()] * len(self.expected.rows)
        table = self.reader.sql(f'select {wanted} from "{self.table}"', at=self.version - 1)
        return self._of_table(table, places)


def _texts(kinds: Sequence[Kind], pairs: Iterable[tuple[Any, Any]]) -> list[tuple[str, ...]]:
    return [
        tuple(
            text(kind, one) for kind, one in zip(kinds, (*_parts(key), *_parts(value)), strict=True)
        )
        for key, value in pairs
    ]


def _parts(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, Mapping) else value)
