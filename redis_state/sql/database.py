"""Runs a statement over live state, by DuckDB (docs/sql.md).

Each statement has a database of its own, in memory. The database reads no file, loads no extension,
and reads its tables from Redis only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.errors import (
    ConfigError,
    FormatError,
    NotFoundError,
    StateError,
    UsageError,
)
from redis_state.protocol.registry import QueryInfo
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.state_table import StateTable
from redis_state.reader.version_request import CONFIRMED
from redis_state.rows.arrow_types import missing_extra
from redis_state.rows.key_filter import ColumnPath, leaves
from redis_state.sql.live_table import LiveTable
from redis_state.sql.statement import (
    WHAT,
    Statement,
    Use,
    constant_of,
    parse,
)
from redis_state.sql.tables import TableSource, all_tables, find_tables, folded
from redis_state.types.decoding import Texts, decoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from redis_state.reader.query import Query
    from redis_state.reader.view import QueryView

_THREADS = 2
_INTERRUPT_EVERY_S = 0.1
"""Interval of repeated interrupts: DuckDB drops an interrupt that arrives before it has begun."""

_OF_DUCKDB = frozenset({"duckdb_tables", "duckdb_views"})
"""Views that answer `SHOW TABLES`; a table of the same name would be read in their place."""

_TEXT_ERRORS = ("ParserException", "BinderException", "CatalogException", "SyntaxException")
"""Errors of DuckDB whose text is about the statement alone. Others may contain values."""


class Database:
    """Runs statements against the queries of one Redis.

    Args:
        query_of: Makes a query of an entry in the list.
        at: See docs/reading.md.
        memory: Memory limit of DuckDB, such as ``1GB``, without the answer.
        text: See `Operators.operator`.
    """

    def __init__(
        self,
        client: Client,
        queries: Sequence[QueryInfo],
        query_of: Callable[[QueryInfo], Query],
        *,
        at: str | int = CONFIRMED,
        memory: str,
        text: Texts = "strict",
    ) -> None:
        self._client = client
        self._queries = queries
        self._query_of = query_of
        self._at = at
        self._memory = memory
        self._decoding = decoding_of(text)
        self._views: dict[str, QueryView] = {}
        self.tables: dict[str, LiveTable] = {}

    def run(self, text: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Returns the answer to one statement.

        Raises:
            UsageError: DuckDB rejects the statement, or fails to run it.
            NotFoundError: The statement names a table that does not exist.
            RedisStateError: A table could not be read.
        """
        _check_kind(parameters)
        with closing(_connected(self._memory)) as connection:
            statement = parse(connection, text)
            _check_count(statement, parameters)
            for name, place in self._places(statement).items():
                used = folded(name)
                try:
                    live = self._live(connection, statement, used, place, parameters)
                except (NotFoundError, StateError, FormatError, ConfigError):
                    if used in statement.uses:
                        raise
                    continue  # it is listed where it can be read
                self.tables[name] = live
                connection.register(name, live)
            connection.execute("set lock_configuration = true")
            return self._interruptible(connection, text, parameters)

    def _interruptible(
        self, connection: DuckDBPyConnection, text: str, parameters: Sequence[Any]
    ) -> pa.Table:
        """Runs the statement in a thread: while in DuckDB, the main thread ignores Ctrl-C."""
        with ThreadPoolExecutor(1, thread_name_prefix="redis-state-sql") as pool:
            answer = pool.submit(self._answer, connection, text, parameters)
            try:
                return answer.result()
            except BaseException:
                while not answer.done():
                    connection.interrupt()
                    wait([answer], timeout=_INTERRUPT_EVERY_S)
                raise

    def _answer(
        self, connection: DuckDBPyConnection, text: str, parameters: Sequence[Any]
    ) -> pa.Table:
        import duckdb

        try:
            found = connection.sql(text, params=list(parameters) or None)
            return found.to_arrow_table()
        except duckdb.Error as error:
            for live in self.tables.values():
                if live.error is not None:
                    raise live.error from None
            raise _refused(error) from None

    def _places(self, statement: Statement) -> Mapping[str, TableSource]:
        if statement.lists_tables:
            found = all_tables(self._queries, self._places_there)
            return {name: place for name, place in found.items() if folded(name) not in _OF_DUCKDB}
        return find_tables(statement.uses, self._queries, self._places_of, own=statement.own)

    def _places_of(self, info: QueryInfo) -> Iterator[TableSource]:
        view = self._view(info.gen)
        for one in view.operators():
            state = view.operator(one.operator, one.store)
            named = [family.name for family in state.families() if not family.internal]
            if len(named) > 1 and DEFAULT_FAMILY in named:
                # Spark's transformWithState declares this family as well, and leaves it empty.
                named.remove(DEFAULT_FAMILY)
            for name in named or [DEFAULT_FAMILY]:
                yield TableSource(info.gen, one.operator, one.store, name)

    def _places_there(self, info: QueryInfo) -> Iterator[TableSource]:
        """Yields the tables of a query that can be read now; its first version may be missing."""
        try:
            yield from self._places_of(info)
        except (NotFoundError, StateError, FormatError):
            return

    def _view(self, gen: str) -> QueryView:
        found = self._views.get(gen)
        if found is None:
            info = next(one for one in self._queries if one.gen == gen)
            found = self._views[gen] = self._query_of(info).view(at=self._at)
        return found

    def _live(
        self,
        connection: DuckDBPyConnection,
        statement: Statement,
        name: str,
        place: TableSource,
        parameters: Sequence[Any],
    ) -> LiveTable:
        view = self._view(place.gen)
        table = StateTable(
            self._client, view, place.operator, place.store, place.family, self._decoding
        )
        columns: list[str] | None = None
        if statement.columns is not None:
            wanted = {*statement.columns, *map(folded, table.key_names)}
            columns = [one for one in table.schema.names if folded(one) in wanted]
        if name in statement.uses:
            _check_names(name, columns or table.schema.names)
        keys = None
        if uses := statement.uses.get(name):
            of_uses = [_keys(connection, table, use, parameters) for use in uses]
            if all(found is not None for found in of_uses):
                # A key that two places ask for is read once.
                keys = list({repr(one): one for found in of_uses for one in found or ()}.values())
        return LiveTable(table, columns, keys)


def _check_kind(parameters: object) -> None:
    if isinstance(parameters, (str, bytes, Mapping)) or not isinstance(parameters, Sequence):
        raise UsageError(
            WHAT,
            found=f"parameters is of type {type(parameters).__name__}",
            advice="Give a list or tuple with a value for each ? of the statement.",
        )


def _check_count(statement: Statement, parameters: Sequence[Any]) -> None:
    named = sorted(one for one in statement.parameters if not one.isdigit())
    if named:
        raise UsageError(
            WHAT, found=f"the parameter ${named[0]} has a name", advice="Write ?, or $1, $2, …"
        )
    if len(statement.parameters) != len(parameters):
        raise UsageError(
            WHAT,
            found=f"it has {len(statement.parameters)} parameters, and {len(parameters)} values "
            "were given",
            advice="Give a value for each.",
        )


def _check_names(table: str, columns: Sequence[str]) -> None:
    """Rejects names that differ in case only: SQL would read the wrong column."""
    by_name: dict[str, str] = {}
    for one in columns:
        other = by_name.setdefault(folded(one), one)
        if other != one:
            raise UsageError(
                WHAT,
                found=(
                    f"table '{table}' has the columns '{other}' and '{one}', which SQL does not "
                    "distinguish"
                ),
                advice="Read it by scan or to_arrow, or as a DataFrame with "
                "spark.sql.caseSensitive=true.",
            )


def _keys(
    connection: DuckDBPyConnection, table: StateTable, use: Use, parameters: Sequence[Any]
) -> list[dict[str, Any]] | None:
    parts = leaves(table.key) if table.key is not None else None
    if not parts:
        return None
    equal: dict[ColumnPath, list[Any]] = {}
    named = {path: tuple(map(folded, path)) for path in parts}
    if len(set(named.values())) < len(parts):
        return None  # a condition does not tell columns of one name apart
    for path, kind in parts.items():
        nodes = use.equal.get(named[path])
        if nodes is None:
            return None
        equal[path] = [
            _fitting(connection, kind, constant_of(connection, node, parameters)) for node in nodes
        ]
    return table.keys_with(equal)


def _fitting(connection: DuckDBPyConnection, kind: str, value: Any) -> Any:
    """Converts a constant to a value of the column, where DuckDB compares it as one."""
    if type(value) is str and kind in ("date", "timestamp", "timestamp_ntz"):
        wanted = {"date": "date", "timestamp_ntz": "timestamp"}.get(kind, "timestamptz")
        value = connection.execute(f"select try_cast(? as {wanted})", [value]).fetchall()[0][0]
    if type(value) is datetime:
        # Two times that differ in `fold` alone are equal.
        value = value.replace(fold=0) if value.tzinfo is None else value
    if kind == "timestamp" and type(value) is datetime:
        return _in_utc(value)
    if kind == "timestamp_ntz" and type(value) is datetime and value.tzinfo is not None:
        return None
    return value


def _in_utc(value: datetime) -> datetime | None:
    """Returns a time in UTC, as Python compares times; ``None`` if the calendar lacks the day."""
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        return None


def _connected(memory: str) -> DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise missing_extra(WHAT, "duckdb", "sql") from None
    connection = duckdb.connect(":memory:")
    try:
        for name, value in (
            ("memory_limit", memory),
            ("threads", _THREADS),
            # Data that does not fit into the memory fails, and is never written to disk.
            ("temp_directory", ""),
            ("TimeZone", "UTC"),
            ("autoload_known_extensions", False),
            ("autoinstall_known_extensions", False),
            # Tables are never variables of Python.
            ("python_enable_replacements", False),
            # Set last: some of the other settings cannot be set after it.
            ("enable_external_access", False),
        ):
            connection.execute(f"set {name} = ?", [value])
    except duckdb.Error as error:
        connection.close()
        raise ConfigError(WHAT, found=str(error), advice="Give memory as '1GB'.") from None
    return connection


def _refused(error: Exception) -> UsageError:
    kind = type(error).__name__
    if kind in _TEXT_ERRORS:
        return UsageError(WHAT, found=str(error))
    if kind == "OutOfMemoryException":
        return UsageError(
            WHAT,
            found="it needs more memory than allowed",
            advice="Choose fewer columns or keys, or allow more: memory='4GB', --memory 4GB.",
        )
    if kind == "PermissionException":
        return UsageError(
            WHAT, found="it reads a file or an address", advice="SQL reads state only."
        )
    return UsageError(
        WHAT,
        found=f"DuckDB ended it with {kind}",
        advice="A value does not fit what the statement does with it: try_cast and try() give NULL "
        "instead.",
    )
