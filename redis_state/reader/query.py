"""Live reads of one query: its operators, stores and versions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import ConfigError, FormatError, NotFoundError, StateError
from redis_state.format.header import Family
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.instances import find_counted
from redis_state.protocol.kept import KeptVersion, open_kept, read_kept
from redis_state.protocol.opening import Opened, open_commands, open_named, read_replies
from redis_state.protocol.registry import (
    OperatorInfo,
    QueryInfo,
    list_queries,
    parse_operators,
)
from redis_state.reader.age import age_s, check_age
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.family import DEFAULT_FAMILY, is_ours, keeps_families
from redis_state.reader.feed.waiting import LOOK_S
from redis_state.reader.live_view import INTERVAL_S, LiveView
from redis_state.reader.operators import Operators
from redis_state.reader.scan import families_of
from redis_state.reader.unconfirmed import open_unconfirmed
from redis_state.reader.version_request import (
    CONFIRMED,
    UNCOMMITTED,
    VersionRequest,
    which_of,
)
from redis_state.reader.versions import NewestOpener, level
from redis_state.reader.view import QueryView
from redis_state.status.figures import some_of
from redis_state.status.growth import Cause
from redis_state.status.growth_causes import causes_of
from redis_state.status.overview import status_of, status_with_older
from redis_state.status.query_status import QueryStatus
from redis_state.status.retained_versions import histories
from redis_state.status.server_load import loads_of
from redis_state.status.slow_causes import slowness_of
from redis_state.status.slowness import Slowness

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.reader.version_request import Which

_WHAT = "opening the state"


class Query(Operators):
    """The query of one checkpoint; made by `Reader.query`.

    Attributes:
        info: Entry of the query in the list of checkpoints.
        blocks: Cached blocks of look-ups, at most about 32 MiB.
    """

    def __init__(self, client: Client, info: QueryInfo, *, tenant: str) -> None:
        self.info = info
        self.blocks = BlockCache()
        self._newest = NewestOpener(client, self.blocks)
        self._client = client
        self._tenant = tenant
        self._known: Mapping[tuple[int, str], OperatorInfo] = {}
        self._known_since = 0.0

    def __repr__(self) -> str:
        return f"Query(name={self.info.name!r}, id={self.info.id!r}, gen={self.info.gen!r})"

    def operators(self) -> list[OperatorInfo]:
        """Returns the stateful operators and their stores, as Redis lists them now.

        Families of an operator with several (`transformWithState`, joins of state format 3 and 4)
        are read from a header of its newest confirmed version.

        Raises:
            FormatError: The list of operators is damaged.
            UnavailableError: Redis gave no answer before the deadline.
        """
        return [replace(one, families=self._families(one)) for one in self._list()]

    def status(self) -> QueryStatus:
        """Returns the status of the query, as `Reader.status` does for all queries."""
        return status_of(self._client, self.info, tenant=self._tenant)

    def kept(self) -> list[KeptVersion]:
        """Returns the kept versions of the query, oldest first; ``at=name`` reads one of them.

        Raises:
            FormatError: An entry is damaged.
            UnavailableError: Redis gave no answer before the deadline.
        """
        now_ms, found = read_kept(self._client, self.info.gen, tenant=self._tenant)
        return [one for one in found if not one.is_expired(now_ms)]

    def why_growing(self) -> list[Cause]:
        """Returns the causes of large or growing state, as far as metadata shows them.

        Reads manifests, headers of segments and the registry, but no row. Changes nothing.

        Raises:
            FormatError: A header is damaged.
            UnavailableError: Redis gave no answer before the deadline.
        """
        found, *older = status_with_older(self._client, self.info, tenant=self._tenant)
        stores = histories(self._client, found, tenant=self._tenant)
        return causes_of(found, stores, older)

    def why_slow(self) -> Slowness:
        """Returns where the time of recent batches goes, and the causes of slow ones.

        Reads the reports of executors and manifests, and samples the servers for a second. Changes
        nothing. See docs/operations.md.

        Raises:
            UnavailableError: Redis gave no answer before the deadline.
        """
        found = self.status()
        (counted,) = find_counted(self._client, [found.gen], tenant=self._tenant)
        servers = loads_of(self._client, now_s=found.now_ms // 1000)
        return slowness_of(found, counted.totals, servers)

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns cached metadata of a store; ``None`` if no call has read any."""
        return self._known.get((operator, store))

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns the metadata of a store as Redis lists it now; ``None`` if it is not listed."""
        self._list()
        return self.known(operator, store)

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """Returns a store and its partitions, as Redis lists them now.

        Raises:
            NotFoundError: There is no such operator or store.
            StateError: The store was given another number of partitions.
        """
        self._list()
        listed = self._operator(operator, store)
        _check_moved([listed])
        return listed, self.ids(listed, range(listed.partitions))

    def store_id(self, operator: int, store: str) -> StoreId:
        """Returns the id that the keys of a store's partitions contain."""
        return StoreId(self.info.gen, operator, store, self._tenant)

    def moved(self, opened: Opened) -> None:
        """Records that the segments of a version have changed."""
        self._newest.moved(opened)

    def view(
        self, operator: int | None = None, version: int | None = None, **which: Unpack[Which]
    ) -> QueryView:
        """Returns a view of all stores at one version, for many calls.

        Args:
            operator: Only the stores of this operator; ``None`` means all.
            version: See `OperatorState.get`, also for `which`.

        Raises:
            NotFoundError: The query has no state, or no such operator.
            RedisStateError: See `OperatorState.get`.
        """
        return QueryView(self._client, self, self._stores(operator), which_of(which, version))

    def live_view(
        self,
        operator: int | None = None,
        *,
        interval_s: float = INTERVAL_S,
        at: str = CONFIRMED,
    ) -> LiveView:
        """Returns a view that follows the query, for very many calls; sends nothing to Redis yet.

        The view looks for a newer confirmed version at most once an interval.

        Args:
            operator: See `view`.
            interval_s: Seconds between two polls, and the greatest lag of an answer.
            at: ``"confirmed"``, or ``"uncommitted"`` to follow the running batch, too.

        Raises:
            ConfigError: `interval_s` is not above 0, or `at` is another version.
        """
        if at not in (CONFIRMED, UNCOMMITTED):
            raise ConfigError(
                "making a live view",
                found="'at' is a version that does not follow the query",
                advice="Give at='confirmed' or at='uncommitted'.",
            )
        wanted = VersionRequest(at=at)
        look = partial(self._look, operator, wanted)
        return LiveView(self._client, self, look, interval_s, wanted=wanted)

    def open(
        self,
        operator: int,
        store: str,
        version: int | None,
        *,
        uids: Sequence[str] | None = None,
        only: Sequence[int] | None = None,
        at: str | int = CONFIRMED,
        max_age: float | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Opens partitions of a store at one version, in one round trip if nothing moves.

        Args:
            uids: Spark's unique ids of the version, one for each partition; ``None`` means those
                from which the query continued.
            only: Partitions of a store that is known; ``None`` means all.
            at: See docs/reading.md.
            max_age: See docs/reading.md; seconds.

        Raises:
            ConfigError: Ids were given for another number of partitions, or without a version.
            NotFoundError: There is no such operator or store.
            StateError: A partition does not hold the version, or the version is older than
                `max_age`. Also if the newest version is requested of a store that was given another
                number of partitions.
        """
        return self.open_at(operator, store, VersionRequest(version, at, uids, max_age), only=only)

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Opens partitions of a store for a version request; see `open`."""
        listed = self._fresh(operator, store, every=only is None)
        found: list[Opened] | None = None
        if listed is None and wanted.newest:
            listed, found = self._first(operator, store)
        elif listed is None:
            self._list()
            listed = self._operator(operator, store)
        if _is_of_now(wanted):
            _check_moved([listed])
        if found is None:
            partitions = only if only is not None else range(listed.partitions)
            found = self._opened(listed, partitions, wanted, keyed=only is not None)
        if wanted.max_age is not None:
            check_age(age_s(self._client, found, alone=listed.alone), wanted.max_age)
        return listed, found

    def open_stores(
        self, stores: Sequence[OperatorInfo], wanted: VersionRequest, *, keyed: bool = False
    ) -> list[list[Opened]]:
        """Opens all partitions of several stores; those that move together at one version.

        Args:
            keyed: Only keys are looked up, so segments may expire soon.

        Raises:
            RedisStateError: See `open`.
        """
        if _is_of_now(wanted):
            _check_moved(stores)
        every = [self.ids(one, range(one.partitions)) for one in stores]
        if any(one.alone for one in stores) or not (wanted.newest or wanted.unconfirmed):
            return [self._opened(one, range(one.partitions), wanted, keyed=keyed) for one in stores]
        ids = [id_ for of_store in every for id_ in of_store]
        if wanted.unconfirmed:
            opened = open_unconfirmed(self._client, ids, wanted, alone=False)
        else:
            found = self._newest.open(ids) if keyed else self._confirmed(ids)
            opened = level(self._client, found)
        rest = iter(opened)
        return [[next(rest) for _ in of_store] for of_store in every]

    def ids(self, info: OperatorInfo, partitions: Iterable[int]) -> list[PartitionId]:
        """Returns the ids of partitions of a store."""
        of = self.store_id(info.operator, info.store)
        return [PartitionId(of, partition) for partition in partitions]

    def _look(
        self, operator: int | None, wanted: VersionRequest, last: QueryView | None
    ) -> QueryView:
        """Opens a view of the newest version, for look-ups.

        Args:
            last: The view of the previous poll.
        """
        stores = self._stores(operator)
        return QueryView(self._client, self, stores, wanted, keyed=True, last=last)

    def _list(self) -> list[OperatorInfo]:
        (raw,) = self._client.call("reading a query", [self._command()])
        self._learn(raw)
        return list(self._known.values())

    def _families(self, info: OperatorInfo) -> tuple[Family, ...]:
        """Returns the families of a store; Redis lists only the default one."""
        if info.alone or info.moved or not keeps_families(info):
            return info.families
        try:
            opened = self._confirmed(self.ids(info, range(info.partitions)))
            found = families_of(self._client, opened)
        except (StateError, FormatError):  # a version that is not there, or damaged
            return info.families
        named = tuple(one for one in found if not is_ours(one) and one.name != DEFAULT_FAMILY)
        return named or info.families

    def _stores(self, operator: int | None) -> list[OperatorInfo]:
        stores = [one for one in self._list() if operator in (None, one.operator)]
        if not stores:
            raise self._unknown(f"operator {operator}" if operator is not None else "any operator")
        return stores

    def _first(self, operator: int, store: str) -> tuple[OperatorInfo, list[Opened]]:
        """Opens the newest confirmed version of a store known only from the list of checkpoints."""
        of = self.store_id(operator, store)
        count = self.info.partitions.get((operator, store), 0)
        ids = [PartitionId(of, partition) for partition in range(count)]
        replies = self._client.call(_WHAT, [self._command(), *open_commands(ids, None)])
        self._learn(replies.pop(0))
        info = self._operator(operator, store)
        if info.partitions > count:
            # All of them once more: partitions of two moments may be of two timelines.
            found = self._confirmed(self.ids(info, range(info.partitions)))
        else:
            found = read_replies(ids, replies, version=None)
        self._newest.keep(found)
        return info, found if info.alone else level(self._client, found)

    def _confirmed(self, ids: Sequence[PartitionId]) -> list[Opened]:
        """Opens partitions at their own newest confirmed versions, with their current segments.

        Long reads need current segments: a dropped segment may expire at any moment.
        """
        replies = self._client.call(_WHAT, open_commands(ids, None)) if ids else []
        return read_replies(ids, replies, version=None)

    def _opened(
        self,
        info: OperatorInfo,
        partitions: Sequence[int],
        wanted: VersionRequest,
        *,
        keyed: bool = False,
    ) -> list[Opened]:
        if wanted.unconfirmed:
            # A version counts once all partitions have published it, also if only some are read.
            read = partitions if info.alone else range(info.partitions)
            opened = open_unconfirmed(self._client, self.ids(info, read), wanted, alone=info.alone)
            found = {one.id.partition: one for one in opened}
            return [found[number] for number in partitions]
        ids = self.ids(info, partitions)
        if wanted.kept is not None:
            return open_kept(self._client, info, ids, wanted.kept)
        if wanted.newest:
            opened = self._newest.open(ids) if keyed else self._confirmed(ids)
            return opened if info.alone else level(self._client, opened)
        version, uids = wanted.named(info), wanted.by_partition(info)
        return open_named(self._client, ids, version, uids=uids)

    def _learn(self, raw: Mapping[bytes, bytes]) -> None:
        self._known_since = self._client.clock.monotonic_s()
        self._known = parse_operators(raw)

    def _fresh(self, operator: int, store: str, *, every: bool) -> OperatorInfo | None:
        """Returns the metadata of a store; asks again after a while, since a store may move.

        A store of Python gets its partitions one by one, so a call for all partitions asks every
        time.
        """
        listed = self.known(operator, store)
        if listed is None or (listed.alone and not every):
            return listed
        if listed.alone or self._client.clock.monotonic_s() - self._known_since >= LOOK_S:
            return self.listed(operator, store)
        return listed

    def _command(self) -> Command:
        return ("HGETALL", keys.query(self.info.gen, tenant=self._tenant))

    def _operator(self, operator: int, store: str) -> OperatorInfo:
        found = self._known.get((operator, store))
        if found is None:
            raise self._unknown(f"operator {operator}, store '{store}'")
        return found

    def _unknown(self, what: str) -> NotFoundError:
        there = ", ".join(f"{one.operator} ({one.store})" for one in self._known.values())
        return NotFoundError(
            f"reading {what}",
            found=f"query '{self.info.title}' has no such operator or store",
            advice=f"Operators and stores that have state: {there or 'none'}.",
        )


def find_query(client: Client, which: str, *, tenant: str) -> Query:
    """Finds a query by its name, its id, or the id of its checkpoint.

    Raises:
        NotFoundError: No query matches.
    """
    queries = list_queries(client, tenant=tenant)
    found = [info for info in queries if which and which in (info.gen, info.id, info.name)]
    if not found:
        names = [info.title for info in queries]
        near = difflib.get_close_matches(which, names, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise NotFoundError(
            f"looking for query '{which}'",
            found="there is no such query in this Redis, database and key prefix",
            advice=f"{hint}Queries: {some_of(names) or 'none'}.",
        )
    newest = max(found, key=lambda info: (info.seen_ms, info.created_ms))
    return Query(client, newest, tenant=tenant)


def _is_of_now(wanted: VersionRequest) -> bool:
    """Returns whether the newest version is requested, and not a named one."""
    return wanted.newest or wanted.unconfirmed


def _check_moved(stores: Iterable[OperatorInfo]) -> None:
    if any(one.moved for one in stores):
        raise StateError(
            _WHAT,
            found=(
                "the number of partitions of the store was changed, so the store has another "
                "checkpoint now; this one no longer changes"
            ),
            advice=(
                "Open the store again by its name. Feeds of changes begin again with since='start'."
            ),
        )
