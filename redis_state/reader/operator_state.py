"""The state of one operator: keys, rows, tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.format.header import Family
from redis_state.reader.compare.one_family import changes_between
from redis_state.reader.family import FamilyChoice, FamilySource, is_ours
from redis_state.reader.family_scan import StoredRows
from redis_state.reader.feed.changes import ChangeBatch, changes
from redis_state.reader.feed.diff import Change, diff
from redis_state.reader.feed.family_location import FamilyLocation, place_of
from redis_state.reader.feed.history import Revision, history
from redis_state.reader.feed.hot import BATCHES, LIMIT, By, HotKeys, hot
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.lookup.decoded import decoded
from redis_state.reader.lookup.key_search import KeyedReads
from redis_state.reader.scan import families_of
from redis_state.reader.table_columns import columns_of, readable_columns
from redis_state.reader.tables import arrow
from redis_state.reader.tables.columns import Filter, Prefix, flat_rows
from redis_state.reader.version_request import which_of
from redis_state.types.decoding import AS_WRITTEN, Decoding

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.codec import Codec as StoreCodec
    from redis_state.reader.source import Stores
    from redis_state.reader.version_request import Which
    from redis_state.types.schema import Struct


class OperatorState:
    """Confirmed state of one operator; made by `Query.operator`.

    A version is confirmed once Spark has logged the batch that wrote it. Each call reads the newest
    confirmed version, the same in all partitions, unless the call names one by `version` or `at`.
    docs/reading.md defines both, and `max_age`. Calls share nothing: use `view` for many calls at
    one version. Every call raises the errors that `get` lists.
    """

    def __init__(
        self,
        client: Client,
        query: Stores,
        operator: int,
        store: str,
        family: str,
        codec: StoreCodec | None,
        decoding: Decoding = AS_WRITTEN,
    ) -> None:
        self._client = client
        self._query = query
        self._operator = operator
        self._store = store
        self._name = family
        self._given = codec
        self._decoding = decoding
        self._choice = FamilyChoice(client, operator, family, codec, decoding)
        of = FamilySource(client, query, operator, store, self._choice)
        self._keyed = KeyedReads(of)
        self._stored = StoredRows(of)

    def __repr__(self) -> str:
        return (
            f"OperatorState({self._query!r}, operator={self._operator}, store={self._store!r}, "
            f"family={self._name!r})"
        )

    def view(self, version: int | None = None, **which: Unpack[Which]) -> OperatorState:
        """Returns the same state at one version, for many calls; see `Query.view`."""
        pinned = self._query.view(self._operator, version, **which)
        return OperatorState(
            self._client,
            pinned,
            self._operator,
            self._store,
            self._name,
            self._given,
            self._decoding,
        )

    def families(self, version: int | None = None, **which: Unpack[Which]) -> list[Family]:
        """Returns the column families of the operator; Spark's own are marked `internal`.

        Internal families of `transform_with_state` are left out.
        """
        _, partitions = self._stored.open(which_of(which, version))
        return [one for one in families_of(self._client, partitions) if not is_ours(one)]

    def family(self, version: int | None = None, **which: Unpack[Which]) -> Family:
        """Returns the column family that is read."""
        codec, _ = self._stored.opened(which_of(which, version))
        return codec.family

    def types(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> tuple[Struct | None, Struct | None]:
        """Returns the Spark columns of keys and of values; two ``None`` in a store of Python."""
        codec, _ = self._stored.opened(which_of(which, version))
        return codec.columns

    def readable_columns(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> list[str] | None:
        """Returns the columns to name in `Query.operator`, to leave out unreadable ones.

        Returns:
            ``None`` if all columns are of types that have a form outside of Spark.
        """
        codec, _ = self._stored.opened(which_of(which, version))
        found = readable_columns(codec)
        return None if len(found) == len(columns_of(codec).names) else found

    def get(self, key: Any, version: int | None = None, **which: Unpack[Which]) -> Any:
        """Returns the value columns of one key by name, or ``None`` if there is no such key.

        Args:
            key: Values of the key columns, by name or in their order. Of a store of Python the key
                itself; the result is then the value itself.
            version: A state version, which is the number of the batch plus one.
            which: ``at``: ``"confirmed"``, ``"latest"`` or a batch id. ``uids``: Spark's unique ids
                of `version`, one for each partition in their order, as the commit log has them
                under checkpoint format 2. ``max_age``: seconds.

        Raises:
            ConfigError: A key column is missing, unknown, or of a type without look-ups; ids do
                not fit the partitions; the family has a list for each key.
            NotFoundError: There is no such operator, store or family.
            StateError: The version does not exist, or is older than `max_age`.
            UnavailableError: Redis gave no answer before the deadline.
            UnreadableError: A value has no form outside of Spark, or a text is not UTF-8.
        """
        codec, hits = self._keyed.find(AskedKeys([key]), which_of(which, version))
        (hit,) = hits.in_order()
        self._choice.be_list(codec, wanted=False)
        return None if hit is None else hit[0].decode_value(hit[1])

    def get_list(self, key: Any, version: int | None = None, **which: Unpack[Which]) -> list[Any]:
        """Returns the value columns of each element of a key's list, in order; empty if absent.

        For families with several values a key, such as list state of `transformWithState`. The
        result is empty if there is no such key.

        Raises:
            RedisStateError: See `get`; also `ConfigError` if the family has one value a key.
        """
        codec, hits = self._keyed.find(AskedKeys([key]), which_of(which, version))
        (hit,) = hits.in_order()
        self._choice.be_list(codec, wanted=True)
        return [] if hit is None else hit[0].decode_values(hit[1])

    def get_many(
        self, keys: Iterable[Any], version: int | None = None, **which: Unpack[Which]
    ) -> list[Any]:
        """Returns the result of `get` for each key, in their order and all of one version.

        Takes a few round trips for each 1,000 keys. Of list state each result is a list, or
        ``None``.

        Args:
            keys: In the form that `get` takes; a key may occur several times.
            version: See `get`.
            which: See `get`.
        """
        wanted, all_keys = which_of(which, version), list(keys)
        if not all_keys:
            return []
        _, hits = self._keyed.find(AskedKeys(all_keys), wanted)
        return decoded(hits)

    def items(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> Iterator[tuple[Any, Any]]:
        """Yields key columns and value columns of every row, partition by partition, in no order.

        Memory is bounded by the changes since the last snapshot of one partition and a chunk of
        blocks. Consume the rows within ten minutes: then a dropped version expires.

        Raises:
            RedisStateError: See `get`; also `UnavailableError` if the version expired during the
                read.
        """
        for codec, rows in self._stored.pieces(which_of(which, version), lists=False):
            for key, value in rows:
                yield codec.decode_key(key), codec.decode_value(value)

    def list_items(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Yields the keys of list state with their elements; see `items` and `get_list`."""
        for codec, rows in self._stored.pieces(which_of(which, version), lists=True):
            for key, value in rows:
                yield codec.decode_key(key), codec.decode_values(value)

    def scan(
        self,
        version: int | None = None,
        *,
        prefix: Prefix = None,
        where: Filter = None,
        columns: Sequence[str] | None = None,
        **which: Unpack[Which],
    ) -> Iterator[dict[str, Any]]:
        """Yields rows as dicts of the columns of `to_arrow`, partition by partition, in no order.

        Args:
            version: See `get`.
            prefix: Values of the first key columns, by name or in their order. Of a store of Python
                the first elements of a tuple, or the first characters of a text or bytes.
            where: A mapping of columns to their required values, or a function of a row, which gets
                all columns.
            columns: Columns to return; ``None`` means all.
            which: See `get`.

        Raises:
            RedisStateError: See `items`; also `ConfigError` if there is no such column.
        """
        return flat_rows(
            self._stored.pieces(which_of(which, version)),
            prefix=prefix,
            where=where,
            columns=columns,
        )

    def count(self, version: int | None = None, **which: Unpack[Which]) -> int:
        """Returns the number of keys.

        Reads only manifests, unless the store has several families or a time to live.
        """
        return self._stored.count(which_of(which, version))

    def to_batches(
        self,
        version: int | None = None,
        *,
        rows: int = arrow.ROWS,
        prefix: Prefix = None,
        where: Filter = None,
        columns: Sequence[str] | None = None,
        **which: Unpack[Which],
    ) -> Iterator[pa.RecordBatch]:
        """Returns rows as Arrow batches: key columns, then value columns.

        A list has a row for each element. docs/reading.md lists the types, and the handling of
        duplicate names.

        Args:
            version: See `get`.
            rows: Most rows of a batch.
            prefix: See `scan`.
            where: See `scan`.
            columns: See `scan`.
            which: See `get`.

        Raises:
            RedisStateError: See `scan`; also `ConfigError` without pyarrow, or if the values of a
                store of Python have no common Arrow type.
        """
        return arrow.batches(self._stored, which_of(which, version), rows, prefix, where, columns)

    def to_arrow(
        self,
        version: int | None = None,
        *,
        prefix: Prefix = None,
        where: Filter = None,
        columns: Sequence[str] | None = None,
        **which: Unpack[Which],
    ) -> pa.Table:
        """Returns all rows of `to_batches` as a `pyarrow.Table`."""
        return arrow.table(self._stored, which_of(which, version), prefix, where, columns)

    def to_pandas(
        self,
        version: int | None = None,
        *,
        prefix: Prefix = None,
        where: Filter = None,
        columns: Sequence[str] | None = None,
        **which: Unpack[Which],
    ) -> pd.DataFrame:
        """Returns `to_arrow` as a pandas DataFrame.

        Raises:
            RedisStateError: See `to_arrow`; also `ConfigError` without pandas.
        """
        return arrow.pandas_frame(
            arrow.table(self._stored, which_of(which, version), prefix, where, columns)
        )

    def to_polars(
        self,
        version: int | None = None,
        *,
        prefix: Prefix = None,
        where: Filter = None,
        columns: Sequence[str] | None = None,
        **which: Unpack[Which],
    ) -> pl.DataFrame:
        """Returns `to_arrow` as a Polars DataFrame.

        Raises:
            RedisStateError: See `to_arrow`; also `ConfigError` without polars.
        """
        return arrow.polars_frame(
            arrow.table(self._stored, which_of(which, version), prefix, where, columns)
        )

    def diff(self, a: str | int, b: str | int | None = None) -> Iterator[Change]:
        """Yields the keys whose values differ between the states after two batches, in no order.

        Reads the deltas between the two states, and those blocks of the state after the earlier
        batch that can hold the touched keys. Memory holds the changes of one partition. Where a
        range of keys was removed, its rows are read. Where the family was dropped, or the store was
        loaded empty, all rows of one partition are read; where rows have a time to live, those of
        all, since a row that has expired in between is a removed key. A kept version is compared
        by its segments: those that both versions have are not read.

        Args:
            a: A batch, by the query's own number; of a store alone, a version minus one. -1 is the
                empty state before all batches. Or the name of a kept version.
            b: Another batch or name, before or after `a`; ``None`` means the newest confirmed one.

        Raises:
            ConfigError: A batch is not a number, or the store began later.
            NotFoundError: There is no such operator, store, family or kept version.
            StateError: A batch is not confirmed yet, or retention has dropped changes between the
                two (`VERSION_EXPIRED`): its `version` is the oldest one that can be compared.
            UnavailableError: Redis gave no answer before the deadline, or a version was dropped
                during the read.
        """
        if isinstance(a, str) or isinstance(b, str):
            place = self._operator, self._store
            yield from changes_between(self._client, self._query, place, self._choice, a, b)
        else:
            yield from diff(self._place(), a, b)

    def history(self, key: Any, *, limit: int | None = None) -> list[Revision]:
        """Returns the past values of one key, the newest first, as far back as retention reaches.

        Reads the blocks that can hold the key, of each kept delta of its partition: two round trips
        for 32 deltas. For a key that is absent now, all partitions are searched, one after the
        other, until one has the key.

        Args:
            key: In the form that `get` takes.
            limit: Most values to return; ``None`` means all that are kept.
        """
        return history(self._place(), key, likely=self._keyed.partition_of(key), limit=limit)

    def hot(self, *, batches: int = BATCHES, limit: int = LIMIT, by: By = "updates") -> HotKeys:
        """Returns the keys that the last batches changed most often, or with most bytes.

        Reads the deltas of these batches, a piece at a time, and a header of each partition. Memory
        is bounded: with more than 131,072 keys figures may be too low, by `HotKeys.error` at most
        (Anderson et al., "A High-Performance Algorithm for Identifying Frequent Items in Data
        Streams", 2017).

        Args:
            batches: Number of batches, back from the newest confirmed one; batches that are no
                longer kept are left out.
            limit: Number of keys.
            by: Measure: ``"updates"`` counts the batches that changed the key.

        Raises:
            ConfigError: An argument is out of range.
            NotFoundError: There is no such operator, store or family.
            UnavailableError: Redis gave no answer before the deadline, or versions were dropped
                during the read.
        """
        return hot(self._place(), batches=batches, limit=limit, by=by)

    def changes(
        self,
        since: str | int | None = None,
        *,
        follow: bool = False,
        interval_s: float = 1.0,
        stop: threading.Event | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yields the changes of each batch once all partitions have confirmed the batch.

        Reads deltas only, and the version below where needed: for rows in a removed range, and for
        lists with appended elements. While nothing happens a follower sends one small command an
        interval.

        Args:
            since: The `token` of a batch: starts after that batch. The number of a batch: starts
                after it, on the timeline that the query continued. ``"start"``: begins with the
                whole state as of the newest confirmed batch. ``None``: starts with the next batch.
            follow: Wait for further batches; else the iterator ends with the batches that are
                confirmed now.
            interval_s: Seconds between two polls.
            stop: Ends a waiting follower, from another thread.

        Raises:
            ConfigError: `since` is not a token of this store, nor the number of a batch, or the
                store began later.
            NotFoundError: There is no such operator, store or family.
            StateError: `VERSION_EXPIRED`: retention has dropped the next changes, and `version` is
                the oldest one to continue from. `STATE_LOST`: the query was rewound to before
                the batch. The message says how to start again.
            UnavailableError: Redis gave no answer before the deadline; continue with the last
                token.
        """
        store = self._query.store_id(self._operator, self._store)
        return changes(self._place, store, since, follow=follow, interval_s=interval_s, stop=stop)

    def _place(self) -> FamilyLocation:
        return place_of(self._client, self._query, self._operator, self._store, self._choice)
