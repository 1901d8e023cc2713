"""`connect` and `Reader`: live reads of the state of streaming queries, from any process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.transports import replica_to, transport_to
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.exports.export import FILE_BYTES, export_query
from redis_state.exports.folder import ExportFolder
from redis_state.exports.manifest import COLUMNS, Export
from redis_state.progress import Progress, silent
from redis_state.protocol.instances import CheckpointCounts, Totals, find_counted
from redis_state.protocol.registry import QueryInfo, list_queries
from redis_state.reader.comparison import LIMIT, Comparison, compare_views
from redis_state.reader.query import Query, find_query
from redis_state.reader.version_request import CONFIRMED
from redis_state.status.overview import status_of_all
from redis_state.status.query_status import QueryStatus
from redis_state.types.decoding import Texts, decoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self, Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

SQL_MEMORY = "1GB"


class Reader:
    """Reads the state that queries keep in one Redis, and changes nothing; created by `connect`.

    Attributes:
        client: The connections, which count their round trips.
    """

    def __init__(self, config: Config, *, clock: Clock = SYSTEM, replica: bool = False) -> None:
        connect = partial(replica_to, clock=clock) if replica else transport_to
        self.client = Client(config, clock=clock, connect=connect, may_lag=replica)
        self._tenant = keys.tenant_of(config.key_prefix)

    def __repr__(self) -> str:
        return f"Reader(url={self.client.url!r})"

    def queries(self) -> list[QueryInfo]:
        """Lists the queries that keep state in this Redis, database and key prefix."""
        return list_queries(self.client, tenant=self._tenant)

    def status(self) -> list[QueryStatus]:
        """Returns the status of every query: versions, rows, bytes, owners, and signs of life.

        Queries are ordered by creation, oldest first. Reads only metadata, in a few bounded
        pipelines.
        Needs the rights `mget` and `time`, which `redis-state acl --reader` gives. An unreadable
        entry, even in the list of checkpoints, is a problem of its query alone
        (`QueryStatus.problems`).

        Raises:
            UnavailableError: Redis gave no answer before the deadline.
        """
        return status_of_all(self.client, tenant=self._tenant)

    def totals(self, gens: Sequence[str]) -> dict[str, dict[tuple[int, int, str], Totals]]:
        """Returns the counts of the instances of checkpoints, by operator, partition and store.

        Instances publish them with their heartbeats, every 20 seconds; docs/format.md, section 9,
        has the names. Counts stay for an hour after the last heartbeat. Damaged entries are left
        out.

        Raises:
            UnavailableError: Redis gave no answer before the deadline.
        """
        return {gen: dict(one.totals) for gen, one in self.counted(gens).items()}

    def errors(self, gens: Sequence[str]) -> dict[str, dict[tuple[str, int, str], int]]:
        """Returns how often tasks of Spark's queries were fenced, or found their state lost.

        The keys are ``"fenced"`` or ``"lost"``, operator and store. A count stays for an hour after
        the last change of any count, and then restarts.

        Raises:
            UnavailableError: Redis gave no answer before the deadline.
        """
        return {gen: dict(one.errors) for gen, one in self.counted(gens).items()}

    def counted(self, gens: Sequence[str]) -> dict[str, CheckpointCounts]:
        """Returns the results of `totals` and `errors` in one read.

        Raises:
            UnavailableError: Redis gave no answer before the deadline.
        """
        return dict(zip(gens, find_counted(self.client, gens, tenant=self._tenant), strict=True))

    def query(self, which: str) -> Query:
        """Finds a query by its name, its id, or the id of its checkpoint.

        Of several checkpoints with one name or id, returns the newest.

        Raises:
            NotFoundError: No query matches.
        """
        return find_query(self.client, which, tenant=self._tenant)

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] = (),
        *,
        at: str | int = CONFIRMED,
        memory: str = SQL_MEMORY,
        text: Texts = "strict",
    ) -> pa.Table:
        """Runs one SQL statement over live state with DuckDB; docs/sql.md has the rules.

        Args:
            statement: One `SELECT`, `SHOW TABLES` or `DESCRIBE`. A table has the name of its query.
            parameters: Values for its ``?``, or ``$1``.
            at: See docs/reading.md. All tables of one query are of one version.
            memory: Memory limit of DuckDB, such as ``"4GB"``, without the result.
            text: See `Query.operator`: ``"strict"`` or ``"replace"``.

        Raises:
            ConfigError: duckdb or pyarrow is missing, or `memory` is malformed.
            UsageError: DuckDB rejects the statement, or fails.
            NotFoundError: The statement names a table that does not exist.
            UnreadableError: A value has no form in SQL; leave its column out.
            RedisStateError: A table could not be read.
        """
        from redis_state.sql.database import Database

        def query_of(info: QueryInfo) -> Query:
            return Query(self.client, info, tenant=self._tenant)

        database = Database(self.client, self.queries(), query_of, at=at, memory=memory, text=text)
        return database.run(statement, parameters)

    def export(
        self,
        which: str,
        to: str | Path,
        *,
        at: str | int = CONFIRMED,
        operator: int | None = None,
        contents: str = COLUMNS,
        file_bytes: int = FILE_BYTES,
        progress: Progress = silent,
    ) -> Export:
        """Exports one version of a whole query to a folder, as Parquet files; docs/export.md.

        Calling it again after an interruption continues with the same version, and keeps complete
        files.

        Args:
            which: See `query`.
            to: A folder, or its address in any file system of fsspec.
            at: See docs/reading.md.
            operator: Only the stores of this operator; ``None`` means all.
            contents: ``"columns"`` adds the decoded columns, if known, to the bytes of keys and
                values.
                ``"raw"`` writes only the bytes.
            file_bytes: A file ends when its keys and values reach this size. A partition has at
                least one file for each family.
            progress: Called with the name of the work, the units done and the total.

        Raises:
            ConfigError: pyarrow is missing, or a file cannot be written.
            NotFoundError: The query or operator does not exist.
            UsageError: The folder has another export, or a complete one; another process took over
                the export; or no version is confirmed yet.
            StateError: `VERSION_EXPIRED`: retention has passed the version.
            RedisStateError: See `OperatorState.items`.
        """
        query = self.query(which)
        return export_query(
            self.client,
            query,
            ExportFolder(to),
            at=at,
            operator=operator,
            contents=contents,
            file_bytes=file_bytes,
            progress=progress,
        )

    def diff(
        self,
        a: str,
        b: str,
        *,
        at_a: str | int = CONFIRMED,
        at_b: str | int = CONFIRMED,
        operator: int | None = None,
        limit: int = LIMIT,
        text: Texts = "strict",
        progress: Progress = silent,
    ) -> Comparison:
        """Compares two versions of whole queries: a fork and its parent, or any two alike.

        Segments that both versions name are not read, so a fork is compared with its parent by what
        either wrote since. Versions without common segments are read whole, bucket by bucket.

        Args:
            a: See `query`.
            b: See `query`; may be the same query.
            at_a: Version of `a`; see docs/reading.md.
            at_b: Version of `b`.
            operator: Only the stores of this operator; ``None`` means all.
            limit: Most different keys to return with both values; all are counted.
            text: See `Query.operator`.
            progress: Called with the name of the work, the units done and the total.

        Raises:
            ConfigError: The limit is negative.
            NotFoundError: A query, operator or kept version does not exist.
            UsageError: The two have other stores, numbers of partitions or types.
            StateError: A version does not exist.
            RedisStateError: See `OperatorState.items`.
        """
        first = self.query(a).view(operator, at=at_a)
        second = self.query(b).view(operator, at=at_b)
        decoding = decoding_of(text)
        return compare_views(
            self.client, first, second, decoding=decoding, limit=limit, progress=progress
        )

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(url: str, *, replica: bool = False, **options: Unpack[Options]) -> Reader:
    """Prepares to read state; the first call connects.

    Args:
        url: ``redis://host[:port][/database]`` or another form of docs/topologies.md.
        replica: Reads from a replica (docs/reading.md). Sentinels name one; for a single server the
            URL must be that of the replica.
        options: Options of `redis_state.configure`, by their Python names.

    Raises:
        ConfigError: The URL or an option is wrong, or a replica of a cluster was requested.
    """
    return Reader(config.parse({"url": url, **options}), replica=replica)
