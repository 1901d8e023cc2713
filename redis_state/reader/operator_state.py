"""The state of one operator: single keys, and all rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.codec.typed_row import ROW_CODEC
from redis_state.errors import ConfigError, NotFoundError
from redis_state.format.header import Family
from redis_state.format.rows import family_of
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.changes import ChangeBatch, changes
from redis_state.reader.diff import Change, diff
from redis_state.reader.history import Revision, history
from redis_state.reader.lookup import Found, look_up
from redis_state.reader.places import Place, RowCodec
from redis_state.reader.python_codec import codec_name_of, python_codec
from redis_state.reader.rows.codec import codec_of
from redis_state.reader.scan import families_of, rows_of
from redis_state.reader.typed_rows import typed_row_codec

if TYPE_CHECKING:
    from redis_state.codec import Codec as StoreCodec
    from redis_state.reader.query import Query

_FAMILIES_MAX = 16
DEFAULT_FAMILY = "default"
"""The column family of every operator but `transformWithState`."""


class OperatorState:
    """State as the query itself has confirmed it; `Query.operator` makes it.

    A version is confirmed once Spark has logged the batch that wrote it. Each call reads the newest
    confirmed version of every partition, unless it names one.
    """

    def __init__(
        self,
        client: Client,
        query: Query,
        operator: int,
        store: str,
        family: str,
        codec: StoreCodec | None,
    ) -> None:
        self._client = client
        self._query = query
        self._operator = operator
        self._store = store
        self._name = family
        self._given = codec
        # Whether a key was found elsewhere than where it was looked for first.
        self._scattered = False
        self._codec: RowCodec | None = None

    def __repr__(self) -> str:
        return (
            f"OperatorState({self._query!r}, operator={self._operator}, store={self._store!r}, "
            f"family={self._name!r})"
        )

    def families(
        self, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> list[Family]:
        """The column families of the operator; `internal` are those that Spark keeps for itself.

        Those that `transform_with_state` keeps for itself are left out.

        Raises:
            RedisStateError: As `get`.
        """
        _, partitions = self._query.open(self._operator, self._store, version, uids=uids)
        return [one for one in families_of(self._client, partitions) if not _is_ours(one)]

    def family(self, version: int | None = None, *, uids: Sequence[str] | None = None) -> Family:
        """The column family that is read.

        Raises:
            RedisStateError: As `get`.
        """
        info, partitions = self._query.open(self._operator, self._store, version, uids=uids)
        return self._codec_of(info, partitions).family

    def get(
        self, key: Any, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> Any:
        """The value columns of one key by name, or ``None`` if there is no such key.

        Args:
            key: Values of the key columns, by name or in their order; of a store that Python keeps
                the key itself, and the answer is the value itself.
            version: A state version, which is the number of the batch plus one.
            uids: Spark's unique ids of the version, one for each partition in their order, as the
                commit log has them under checkpoint format 2; ``None`` means the version that the
                query went on with.

        Raises:
            ConfigError: A key column is missing, unknown, or of a type that has no lookup; ids do
                not fit the partitions; the family has a list for each key.
            NotFoundError: There is no such operator, store or family.
            StateError: The version is not there.
            UnavailableError: Redis gave no answer before the deadline.
        """
        codec, value = self._value(key, version, uids)
        self._be_list(codec, wanted=False)
        return None if value is None else codec.decode_value(value)

    def get_list(
        self, key: Any, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> list[Any]:
        """The value columns of each element of a key's list, in order; empty if there is no key.

        For families with several values a key: list state of `transformWithState`.

        Raises:
            RedisStateError: As `get`; `ConfigError` also if the family has one value a key.
        """
        codec, value = self._value(key, version, uids)
        self._be_list(codec, wanted=True)
        return [] if value is None else codec.decode_values(value)

    def items(
        self, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Key columns and value columns of every row, partition by partition, in no order.

        Memory is bounded by the changes since the last snapshot of one partition and a chunk of
        blocks. Rows should be taken within ten minutes: then a dropped version expires.

        Raises:
            RedisStateError: As `get`; `UnavailableError` also if the version expired while it was
                read.
        """
        for codec, key, value in self._rows(version, uids, lists=False):
            yield codec.decode_key(key), codec.decode_value(value)

    def list_items(
        self, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> Iterator[tuple[Any, list[Any]]]:
        """As `items`, with the elements of each key's list, as `get_list` gives them."""
        for codec, key, value in self._rows(version, uids, lists=True):
            yield codec.decode_key(key), codec.decode_values(value)

    def _rows(
        self, version: int | None, uids: Sequence[str] | None, *, lists: bool
    ) -> Iterator[tuple[RowCodec, bytes, bytes]]:
        info, partitions = self._query.open(self._operator, self._store, version, uids=uids)
        self._be_list(self._codec_of(info, partitions), wanted=lists)
        for opened in partitions:
            table: Sequence[Family] | None = None
            codec: RowCodec | None = None
            for key, value, families in rows_of(self._client, opened):
                if families is not table:
                    table, family = families, self._family_in(families)
                    codec = None if family is None else self._made(family)
                if codec is not None and family_of(key) == codec.family.id:
                    yield codec, key, value

    def _value(
        self, key: Any, version: int | None, uids: Sequence[str] | None
    ) -> tuple[RowCodec, bytes | None]:
        known = self._query.known(self._operator, self._store)
        if known is None or self._codec is None or self._scattered:
            info, opened = self._query.open(self._operator, self._store, version, uids=uids)
            codec = self._codec_of(info, opened)
            likely = codec.likely_partition(key, partitions=info.partitions)
            opened.sort(key=lambda one: one.id.partition != likely)
            return self._find(codec, opened, key, likely=likely)
        likely = self._codec.likely_partition(key, partitions=known.partitions)
        found = self._open_and_find([likely], key, version, uids, likely)
        others = [number for number in range(known.partitions) if number != likely]
        if found[1] is not None or not others:
            return found
        return self._open_and_find(others, key, version, uids, likely)

    def _open_and_find(
        self,
        partitions: Sequence[int],
        key: Any,
        version: int | None,
        uids: Sequence[str] | None,
        likely: int,
    ) -> tuple[RowCodec, bytes | None]:
        info, opened = self._query.open(
            self._operator, self._store, version, uids=uids, only=partitions
        )
        return self._find(self._codec_of(info, opened), opened, key, likely=likely)

    def _find(
        self, codec: RowCodec, partitions: Sequence[Opened], key: Any, *, likely: int
    ) -> tuple[RowCodec, bytes | None]:
        for one in self._look_up(partitions, codec, key):
            family = self._family_in(one.families)
            if family is None:
                continue  # Nothing was written yet, or the family came later.
            own = self._made(family)
            if own.layout != codec.layout:
                # The registry describes another layout of keys than this version has.
                (one,) = self._look_up([one.opened], own, key)
            if one.value is not None:
                self._scattered |= one.opened.id.partition != likely
                return own, one.value
        return codec, None

    def _look_up(self, partitions: Sequence[Opened], codec: RowCodec, key: Any) -> Iterator[Found]:
        stored = codec.encode_key(key)
        return look_up(self._client, partitions, stored, kind=codec.family.kind)

    def _codec_of(self, info: OperatorInfo, partitions: Sequence[Opened]) -> RowCodec:
        """The layout of keys that is tried first; each version has a family table of its own."""
        if self._codec is None:
            family = self._family_in(info.families)
            if family is None or (codec_name_of(family) is None and _is_placeholder(family)):
                # The list of operators has the default family only.
                families = families_of(self._client, partitions)
                family = self._family_in(families) or family
                if family is None or (self._name == DEFAULT_FAMILY and len(families) > 1):
                    raise self._no_family(families or info.families)
            self._codec = self._made(family)
        return self._codec

    def _made(self, family: Family) -> RowCodec:
        name = codec_name_of(family)
        if name == ROW_CODEC and self._given is None:
            return typed_row_codec(family)
        if name is not None:
            return python_codec(family, name, self._given)
        if self._given is not None:
            raise ConfigError(
                f"reading family '{self._name}' of operator {self._operator}",
                found="a codec was given, but this state is kept by Spark",
                advice="Leave the codec out: the schema of Spark's rows is known.",
            )
        return codec_of(family)

    def _no_family(self, families: Sequence[Family]) -> NotFoundError:
        found = "the operator has no such family"
        if self._name == DEFAULT_FAMILY:
            found = "the operator keeps each state variable in a family of its own"
        named = [one for one in families if one.name != DEFAULT_FAMILY and not _is_ours(one)]
        names = ", ".join(f"'{one.name}'" for one in named if not one.internal)
        internal = ", ".join(f"'{one.name}'" for one in named if one.internal)
        return NotFoundError(
            f"reading family '{self._name}' of operator {self._operator}",
            found=found,
            advice=f"Name one of them by family=…: {names or 'none'}."
            + (f" Spark's own: {internal}." if internal else ""),
        )

    def _family_in(self, families: Sequence[Family]) -> Family | None:
        return next((family for family in families if family.name == self._name), None)

    def _be_list(self, codec: RowCodec, *, wanted: bool) -> None:
        if codec.family.multi_value is not wanted:
            has, calls = "one value", "get and items"
            if codec.family.multi_value:
                has, calls = "a list of values", "get_list and list_items"
            raise ConfigError(
                f"reading family '{self._name}' of operator {self._operator}",
                found=f"it has {has} for each key",
                advice=f"Use {calls}.",
            )

    def diff(self, a: int, b: int | None = None) -> Iterator[Change]:
        """The keys whose values differ between the states after two batches, in no order.

        Read are the deltas between the two, and of the state after the earlier batch the blocks
        that can hold the keys which they touched. Memory holds what the deltas say of one
        partition. Where a range of keys was removed, its rows are read; where the family was
        dropped, or the store was loaded empty, all of one partition.

        Args:
            a: A batch; -1 stands for the empty state before all batches.
            b: Another one, before or after `a`; ``None`` means the newest confirmed one.

        Raises:
            ConfigError: A batch is not a number.
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
        return history(self._place(), key, likely=self._partition_of(key), limit=limit)

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
            ConfigError: `since` is not a token of this store, nor the number of a batch.
            NotFoundError: There is no such operator, store or family.
            StateError: `VERSION_EXPIRED`: retention has dropped what came next, and `version` is
                the oldest one from which one can go on. `STATE_LOST`: the query went back behind
                the batch. The message says how to start again.
            UnavailableError: Redis gave no answer before the deadline; go on with the last token.
        """
        store = self._query.store_id(self._operator, self._store)
        return changes(self._place, store, since, follow=follow, interval_s=interval_s, stop=stop)

    def _partition_of(self, key: Any) -> int:
        """Where a key is now; where it would be looked for first, if it is nowhere."""
        info, opened = self._query.open(self._operator, self._store, None)
        codec = self._codec_of(info, opened)
        likely = codec.likely_partition(key, partitions=info.partitions)
        opened.sort(key=lambda one: one.id.partition != likely)
        found = self._look_up(opened, codec, key)
        there = (one.opened.id.partition for one in found if one.value is not None)
        return next(there, likely)

    def _place(self) -> Place:
        info, ids = self._query.partitions(self._operator, self._store)

        def check(opened: Callable[[], Sequence[Opened]]) -> None:
            if self._codec is None:
                self._codec_of(info, opened())

        # Asked for with every row.
        made = lru_cache(maxsize=_FAMILIES_MAX)(self._made)
        return Place(self._client, ids, self._name, made, check)


def _is_ours(family: Family) -> bool:
    """Whether it is one that a processor's variables are found by: indexes, timers, notes."""
    return family.internal and codec_name_of(family) is not None


def _is_placeholder(family: Family) -> bool:
    """Whether it is what Spark's `transformWithState` declares beside its families, and leaves."""
    codec = codec_of(family)
    return (codec.key.names, codec.values.columns.names) == (("key",), ("value",))
