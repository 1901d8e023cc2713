"""The state of one operator: keys, rows, tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.format.header import Family
from redis_state.reader.family import FamilyChoice, is_ours
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
from redis_state.reader.versions import which_of
from redis_state.rows.decoding import AS_WRITTEN, Decoding

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.codec import Codec as StoreCodec
    from redis_state.reader.source import Stores
    from redis_state.reader.versions import Which
    from redis_state.rows.spark_types import Struct


class OperatorState:
    """State as the query itself has confirmed it; `Query.operator` makes it.

    A version is confirmed once Spark has logged the batch that wrote it. Each call reads the newest
    confirmed version, the same in all partitions that it reads, unless it names one by `version`
    or `at`; docs/reading.md says what both mean, and `max_age`. Calls share nothing: `view` is for
    many calls at one version.
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
        self._keyed = KeyedReads(client, query, operator, store, self._choice)
        self._stored = StoredRows(client, query, operator, store, self._choice)

    def __repr__(self) -> str:
        return (
            f"OperatorState({self._query!r}, operator={self._operator}, store={self._store!r}, "
            f"family={self._name!r})"
        )

    def view(self, version: int | None = None, **which: Unpack[Which]) -> OperatorState:
        """The same state at one version, for many calls; as `Query.view`.

        Raises:
            RedisStateError: As `get`.
        """
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
        """The column families of the operator; `internal` are those that Spark keeps for itself.

        Those that `transform_with_state` keeps for itself are left out.

        Raises:
            RedisStateError: As `get`.
        """
        _, partitions = self._stored.open(which_of(which, version))
        return [one for one in families_of(self._client, partitions) if not is_ours(one)]

    def family(self, version: int | None = None, **which: Unpack[Which]) -> Family:
        """The column family that is read.

        Raises:
            RedisStateError: As `get`.
        """
        info, partitions = self._stored.open(which_of(which, version))
        return self._choice.likely(info, partitions).family

    def types(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> tuple[Struct | None, Struct | None]:
        """The columns of keys and of values, with Spark's types; ``None`` in a store of Python.

        Raises:
            RedisStateError: As `get`.
        """
        codec, _ = self._stored.opened(which_of(which, version))
        return codec.columns

    def readable_columns(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> list[str] | None:
        """The columns to name in `Query.operator`, to leave out what cannot be handed out.

        Returns:
            ``None`` if all columns are of types that have a form outside of Spark.

        Raises:
            RedisStateError: As `get`.
        """
        codec, _ = self._stored.opened(which_of(which, version))
        found = readable_columns(codec)
        return None if len(found) == len(columns_of(codec).names) else found

    def get(self, key: Any, version: int | None = None, **which: Unpack[Which]) -> Any:
        """The value columns of one key by name, or ``None`` if there is no such key.

        Args:
            key: Values of the key columns, by name or in their order; of a store that Python keeps
                the key itself, and the answer is the value itself.
            version: A state version, which is the number of the batch plus one.
            which: ``at``: ``"confirmed"``, ``"latest"`` or a batch id. ``uids``: Spark's unique ids
                of `version`, one for each partition in their order, as the commit log has them
                under checkpoint format 2. ``max_age``: seconds.

        Raises:
            ConfigError: A key column is missing, unknown, or of a type that has no lookup; ids do
                not fit the partitions; the family has a list for each key.
            NotFoundError: There is no such operator, store or family.
            StateError: The version is not there, or older than `max_age`.
            UnavailableError: Redis gave no answer before the deadline.
            UnreadableError: A value has no form outside of Spark, or a text is not UTF-8.
        """
        codec, hits = self._keyed.find(AskedKeys([key]), which_of(which, version))
        (hit,) = hits.in_order()
        self._choice.be_list(codec, wanted=False)
        return None if hit is None else hit[0].decode_value(hit[1])

    def get_list(self, key: Any, version: int | None = None, **which: Unpack[Which]) -> list[Any]:
        """The value columns of each element of a key's list, in order; empty if there is no key.

        For families with several values a key: list state of `transformWithState`.

        Raises:
            RedisStateError: As `get`; `ConfigError` also if the family has one value a key.
        """
        codec, hits = self._keyed.find(AskedKeys([key]), which_of(which, version))
        (hit,) = hits.in_order()
        self._choice.be_list(codec, wanted=True)
        return [] if hit is None else hit[0].decode_values(hit[1])

    def get_many(
        self, keys: Iterable[Any], version: int | None = None, **which: Unpack[Which]
    ) -> list[Any]:
        """What `get` gives for each of the keys, in their order and all of one version.

        A few round trips for each 1,000 keys. Of list state each value is a list, or ``None``.

        Args:
            keys: As `get` takes them; one may come several times.
            version: As `get`.
            which: As `get`.

        Raises:
            RedisStateError: As `get`.
        """
        wanted, all_keys = which_of(which, version), list(keys)
        if not all_keys:
            return []
        _, hits = self._keyed.find(AskedKeys(all_keys), wanted)
        return decoded(hits)

    def items(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> Iterator[tuple[Any, Any]]:
        """Key columns and value columns of every row, partition by partition, in no order.

        Memory is bounded by the changes since the last snapshot of one partition and a chunk of
        blocks. Rows should be taken within ten minutes: then a dropped version expires.

        Raises:
            RedisStateError: As `get`; `UnavailableError` also if the version expired while it was
                read.
        """
        for codec, rows in self._stored.pieces(which_of(which, version), lists=False):
            for key, value in rows:
                yield codec.decode_key(key), codec.decode_value(value)

    def list_items(
        self, version: int | None = None, **which: Unpack[Which]
    ) -> Iterator[tuple[Any, list[Any]]]:
        """As `items`, with the elements of each key's list, as `get_list` gives them."""
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
        """Rows as dicts of the columns that `to_arrow` has, partition by partition, in no order.

        Args:
            version: As `get`.
            prefix: Values of the first key columns, by name or in their order; of a store of Python
                the first elements of a tuple, or what a text or bytes begin with.
            where: A mapping of columns to values that they have to have, or a function of a row,
                which gets all of its columns.
            columns: Those that are wanted; ``None`` means all.
            which: As `get`.

        Raises:
            RedisStateError: As `items`; `ConfigError` if there is no such column.
        """
        return flat_rows(
            self._stored.pieces(which_of(which, version)),
            prefix=prefix,
            where=where,
            columns=columns,
        )

    def count(self, version: int | None = None, **which: Unpack[Which]) -> int:
        """How many keys there are; from the manifests alone where the store has one family.

        Raises:
            RedisStateError: As `items`.
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
        """Rows as Arrow batches: key columns, then value columns; of a list a row an element.

        docs/reading.md has the types, and what happens to a name that comes twice.

        Args:
            version: As `get`.
            rows: So many at most in a batch.
            prefix: As `scan`.
            where: As `scan`.
            columns: As `scan`.
            which: As `get`.

        Raises:
            RedisStateError: As `scan`; `ConfigError` also without pyarrow, or if the values of a
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
        """All rows of `to_batches` as a `pyarrow.Table`.

        Raises:
            RedisStateError: As `to_batches`.
        """
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
        """`to_arrow` as a pandas DataFrame.

        Raises:
            RedisStateError: As `to_arrow`; `ConfigError` also without pandas.
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
        """`to_arrow` as a Polars DataFrame.

        Raises:
            RedisStateError: As `to_arrow`; `ConfigError` also without polars.
        """
        return arrow.polars_frame(
            arrow.table(self._stored, which_of(which, version), prefix, where, columns)
        )

    def diff(self, a: int, b: int | None = None) -> Iterator[Change]:
        """The keys whose values differ between the states after two batches, in no order.

        Read are the deltas between the two, and of the state after the earlier batch the blocks
        that can hold the keys which they touched. Memory holds what the deltas say of one
        partition. Where a range of keys was removed, its rows are read; where the family was
        dropped, or the store was loaded empty, all of one partition.

        Args:
            a: A batch, by the number that the query itself gives it; of a store alone, a version
                minus one. -1 stands for the empty state before all batches.
            b: Another one, before or after `a`; ``None`` means the newest confirmed one.

        Raises:
            ConfigError: A batch is not a number, or the store began later.
            NotFoundError: There is no such operator, store or family.
            StateError: A batch is not confirmed yet, or retention has dropped changes between the
                two (`VERSION_EXPIRED`): its `version` is the oldest one that can be compared.
            UnavailableError: Redis gave no answer before the deadline, or a version was dropped
                while it was read.
        """
        yield from diff(self._place(), a, b)

    def history(self, key: Any, *, limit: int | None = None) -> list[Revision]:
        """The values that a key has had, the newest first, as far back as retention reaches.

        Read are the blocks that can hold the key, of each kept delta of its partition: two round
        trips for 32 deltas. Of a key that is absent now, all partitions are looked at, one after
        the other, until one knows it.

        Args:
            key: As `get` takes it.
            limit: How many values; ``None`` means all that are kept.

        Raises:
            RedisStateError: As `get`.
        """
        return history(self._place(), key, likely=self._keyed.partition_of(key), limit=limit)

    def hot(self, *, batches: int = BATCHES, limit: int = LIMIT, by: By = "updates") -> HotKeys:
        """The keys that the last batches changed most, or of which they wrote most.

        The deltas of these batches are read, a piece at a time, and of each partition a header.
        Memory is bounded: with more than 131,072 keys figures may be too low, by `HotKeys.error` at
        most (Anderson et al., "A High-Performance Algorithm for Identifying Frequent Items in Data
        Streams", 2017).

        Args:
            batches: How many, back from the newest that the query has confirmed; older ones than
                are kept are left out.
            limit: How many keys.
            by: What counts: ``"updates"`` are batches that changed the key.

        Raises:
            ConfigError: An argument is out of range.
            NotFoundError: There is no such operator, store or family.
            UnavailableError: Redis gave no answer before the deadline, or versions were dropped
                while they were read.
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
        """What each batch changed, batch by batch, once all partitions have confirmed it.

        Only deltas are read, and the version below where it has to be: for rows in a range that
        was removed, and for lists that were appended to. While nothing happens a follower sends
        one small command an interval.

        Args:
            since: The `token` of a batch: what came after it. The number of a batch: what came
                after it, on whatever the query went on with. ``"start"``: the whole state first, as
                the newest confirmed batch left it. ``None``: what comes from now on.
            follow: Wait for further batches; else the iterator ends with the batches that are
                confirmed now.
            interval_s: Seconds between two looks.
            stop: Ends a follower that waits, from another thread.

        Raises:
            ConfigError: `since` is not a token of this store, nor the number of a batch, or the
                store began later.
            NotFoundError: There is no such operator, store or family.
            StateError: `VERSION_EXPIRED`: retention has dropped what came next, and `version` is
                the oldest one from which one can go on. `STATE_LOST`: the query went back behind
                the batch. The message says how to start again.
            UnavailableError: Redis gave no answer before the deadline; go on with the last token.
        """
        store = self._query.store_id(self._operator, self._store)
        return changes(self._place, store, since, follow=follow, interval_s=interval_s, stop=stop)

    def _place(self) -> FamilyLocation:
        return place_of(self._client, self._query, self._operator, self._store, self._choice)
