"""One version of a query's stores, for any number of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, NotFoundError, StateError
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.opening import Opened, made_up_now
from redis_state.protocol.registry import OperatorInfo, QueryInfo
from redis_state.reader.age import age_s, check_age
from redis_state.reader.feed.waiting import LOOK_S
from redis_state.reader.operators import Operators
from redis_state.reader.source import Stores
from redis_state.reader.version_request import NEWEST, VersionRequest
from redis_state.reader.versions import runs_reached

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redis_state.reader.version_request import Which

_StoreKey = tuple[int, str]


class ViewedQuery(Stores, Protocol):
    """The query behind a view; `Query` is the only implementation.

    Attributes:
        info: Entry of the query in the list of checkpoints.
    """

    info: QueryInfo

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> QueryView:
        """Returns a view of the query at one version."""

    def ids(self, info: OperatorInfo, partitions: Iterable[int]) -> list[PartitionId]:
        """Returns the ids of partitions of a store."""

    def open_stores(
        self, stores: Sequence[OperatorInfo], wanted: VersionRequest, *, keyed: bool = False
    ) -> list[list[Opened]]:
        """Opens all partitions of several stores."""


class QueryView(Operators):
    """A query at one version; made by `Query.view`.

    All reads are of this version, also after the query has continued. The version stays readable
    while retention keeps it, and for at least ten minutes after the view was made. Then reads raise
    `VERSION_EXPIRED`. A view holds no connection and needs no closing.

    Attributes:
        info: Entry of the query in the list of checkpoints.
        blocks: Cached blocks of the query.
    """

    def __init__(
        self,
        client: Client,
        query: ViewedQuery,
        stores: Sequence[OperatorInfo],
        wanted: VersionRequest,
        *,
        keyed: bool = False,
        last: QueryView | None = None,
    ) -> None:
        self.info: QueryInfo = query.info
        self.blocks = query.blocks
        self._client = client
        self._query = query
        self._known: Mapping[_StoreKey, OperatorInfo] = {_place(one): one for one in stores}
        self._failed: dict[_StoreKey, StateError] = {}
        self._made_s = client.clock.monotonic_s()
        self._keyed = keyed
        self._tried_s = self._made_s
        if last is not None and self._made_s - last._tried_s < LOOK_S:
            # Stores that an earlier plan left behind stay there; finding that out takes long.
            self._failed = {
                place: last._failed[place] for place in last._failed.keys() & self._known
            }
            self._tried_s = last._tried_s
        self._pins = self._pinned(wanted)
        self._max_age = wanted.max_age
        self._age: float | None = None
        if wanted.max_age is not None:
            every = [one for of_store in self._pins.values() for one in of_store]
            alone = any(one.alone for one in stores)
            self._age = age_s(client, every, alone=alone)
            check_age(self._age, wanted.max_age)

    def __repr__(self) -> str:
        return f"QueryView({self._query!r}, version={self.version})"

    @property
    def uncommitted(self) -> int:
        """The number of partitions with rows of the running batch, which may be taken back.

        Above 0 only with ``at="uncommitted"``. Then `version` is the one that the batch makes.
        """
        every = (one for of_store in self._pins.values() for one in of_store)
        return sum(one.below is not None for one in every)

    @property
    def version(self) -> int | None:
        """The state version; ``None`` if each partition has versions of its own."""
        versions = {one.pin.version for of_store in self._pins.values() for one in of_store}
        alone = any(self._known[place].alone for place in self._pins)
        return None if alone and len(versions) > 1 else max(versions, default=0)

    @property
    def batch(self) -> int | None:
        """The batch that made the version; ``None`` if no batch did."""
        ahead = {self._known[place].ahead for place in self._pins}
        version = self.version
        if version is None or len(ahead) != 1 or version < 1:
            return None
        batch = version - ahead.pop()
        return batch if batch >= 0 else None

    def operators(self) -> list[OperatorInfo]:
        """Returns the stores that can be read at this version."""
        return [self._known[place] for place in self._pins]

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns the metadata of a store; ``None`` if the view does not have the store."""
        return self._known.get((operator, store))

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns the metadata of a store as of the making of the view; see `known`."""
        return self.known(operator, store)

    def view(
        self,
        operator: int | None = None,  # noqa: ARG002  # as Query's
        version: int | None = None,
        **which: Unpack[Which],
    ) -> QueryView:
        """Returns this view, which has one version.

        Raises:
            ConfigError: The request names another version.
        """
        if which or version is not None:
            raise _has_one()
        return self

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Returns the partitions of a store at this version.

        Sends nothing to Redis, with one exception: all partitions of a live view's view are opened
        anew, since a long read needs segments that do not expire soon.

        Raises:
            ConfigError: The request names another version.
            NotFoundError: The view has no such store.
            StateError: The store has no such version, or the view is older than its `max_age`.
        """
        if wanted != NEWEST:
            raise _has_one()
        if (operator, store) in self._failed:
            raise self._failed[operator, store]
        if (operator, store) not in self._pins:
            there = ", ".join(f"{one.operator} ({one.store})" for one in self._known.values())
            raise NotFoundError(
                f"reading operator {operator}, store '{store}' of a view",
                found="the view has no such operator or store",
                advice=f"It has: {there}.",
            )
        if self._max_age is not None and self._age is not None:
            passed = self._client.clock.monotonic_s() - self._made_s
            check_age(self._age + passed, self._max_age)
        if self._keyed and only is None:
            self._pins[operator, store] = made_up_now(self._client, self._pins[operator, store])
        pins = self._pins[operator, store]
        found = pins if only is None else [pins[number] for number in only]
        return self._known[operator, store], list(found)

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """Returns a store and its partitions, to read many versions; see `Query.partitions`."""
        return self._query.partitions(operator, store)

    def store_id(self, operator: int, store: str) -> StoreId:
        """Returns the id of a store; see `Query.store_id`."""
        return self._query.store_id(operator, store)

    def moved(self, opened: Opened) -> None:
        """Records that the segments of a version have changed."""
        pins = self._pins.get((opened.id.store.operator, opened.id.store.store), [])
        number = opened.id.partition
        if number < len(pins) and pins[number].pin == opened.pin:
            pins[number] = opened

    def _pinned(self, wanted: VersionRequest) -> dict[_StoreKey, list[Opened]]:
        stores = [one for place, one in self._known.items() if place not in self._failed]
        try:
            return self._together(stores, wanted)
        except StateError:
            if len(stores) == 1 or isinstance(wanted.at, int):
                raise
        # A store of an earlier plan of the query does not advance with the others. The version that
        # the newest run holds is the query's version; each other store joins if it holds that, too.
        ids = [self._query.ids(one, range(one.partitions)) for one in stores]
        reached = dict(zip(map(_place, stores), runs_reached(self._client, ids), strict=True))
        good: list[OperatorInfo] = []
        found: dict[_StoreKey, list[Opened]] = {}
        for one in sorted(stores, key=lambda one: reached[_place(one)], reverse=True):
            try:
                found = self._together([*good, one], wanted)
            except StateError as error:
                self._failed[_place(one)] = error
            else:
                good.append(one)
        if not found:
            raise next(iter(self._failed.values()))
        return {place: found[place] for place in self._known if place in found}

    def _together(
        self, stores: Sequence[OperatorInfo], wanted: VersionRequest
    ) -> dict[_StoreKey, list[Opened]]:
        found = self._query.open_stores(stores, wanted, keyed=self._keyed)
        return {_place(info): opened for info, opened in zip(stores, found, strict=True)}


def _place(info: OperatorInfo) -> _StoreKey:
    return info.operator, info.store


def _has_one() -> ConfigError:
    return ConfigError(
        "reading a view",
        found="another version was requested than the one opened",
        advice="Omit version, uids, at and max_age, or read the query itself.",
    )
