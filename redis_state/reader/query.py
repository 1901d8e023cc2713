"""Live reads of one query: its operators, stores and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.codec import Codec
from redis_state.errors import ConfigError, NotFoundError
from redis_state.ids import DEFAULT_STORE, PartitionId, StoreId, is_uid
from redis_state.protocol.opening import Opened, open_commands, read_replies
from redis_state.protocol.registry import OperatorInfo, QueryInfo, parse_operators
from redis_state.reader.growth import Cause, causes_of
from redis_state.reader.kept_versions import histories
from redis_state.reader.operator_state import DEFAULT_FAMILY, OperatorState
from redis_state.reader.overview import status_of, status_with_older
from redis_state.reader.status import QueryStatus


class Query:
    """A query by one checkpoint; `Reader.query` makes it.

    Attributes:
        info: What the list of checkpoints says.
    """

    def __init__(self, client: Client, info: QueryInfo, *, tenant: str) -> None:
        self.info = info
        self._client = client
        self._tenant = tenant
        self._known: Mapping[tuple[int, str], OperatorInfo] = {}

    def __repr__(self) -> str:
        return f"Query(name={self.info.name!r}, id={self.info.id!r}, gen={self.info.gen!r})"

    def operators(self) -> list[OperatorInfo]:
        """The stateful operators and their stores, as Redis lists them now."""
        (raw,) = self._client.call("reading a query", [self._command()])
        self._known = parse_operators(raw)
        return list(self._known.values())

    def status(self) -> QueryStatus:
        """How the query stands; as `Reader.status` tells it of all."""
        return status_of(self._client, self.info, tenant=self._tenant)

    def why_growing(self) -> list[Cause]:
        """Why the state of the query grows or stays large, as far as metadata shows it.

        Manifests, headers of segments and the registry are read, no row; nothing is changed.

        Raises:
            FormatError: The list of checkpoints or a header is damaged.
            UnavailableError: Redis gave no answer before the deadline.
        """
        found, *older = status_with_older(self._client, self.info, tenant=self._tenant)
        stores = histories(self._client, found, tenant=self._tenant)
        return causes_of(found, stores, older)

    def operator(
        self,
        operator: int = 0,
        store: str = DEFAULT_STORE,
        *,
        family: str = DEFAULT_FAMILY,
        codec: Codec | None = None,
    ) -> OperatorState:
        """The state of one operator; nothing is asked of Redis yet.

        Args:
            operator: Spark's id of the operator: 0 for the first of the query.
            store: Spark's name of the store; only stream-stream joins have several.
            family: Name of the column family; only `transformWithState` has several, one for each
                state variable, named as the variable is; `OperatorState.families` lists them.
            codec: What a program in Python writes the store with; ``None`` means the one of its
                name, `MSGPACK` or `RAW`.
        """
        return OperatorState(self._client, self, operator, store, family, codec)

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """What an earlier call found out about a store."""
        return self._known.get((operator, store))

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """A store and its partitions, as Redis lists them now.

        Raises:
            NotFoundError: There is no such operator or store.
        """
        self.operators()
        listed = self._operator(operator, store)
        of = self.store_id(operator, store)
        return listed, [PartitionId(of, partition) for partition in range(listed.partitions)]

    def store_id(self, operator: int, store: str) -> StoreId:
        """What the keys of a store's partitions are made of."""
        return StoreId(self.info.gen, operator, store, self._tenant)

    def open(
        self,
        operator: int,
        store: str,
        version: int | None,
        *,
        uids: Sequence[str] | None = None,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Open partitions of a store, in one round trip if their number is listed.

        Args:
            uids: Spark's unique ids of the version, one for each partition; ``None`` means those
                that the query went on with.
            only: Partitions of a store that is known; ``None`` means all.

        Raises:
            ConfigError: Ids were given for another number of partitions, or without a version.
            NotFoundError: There is no such operator or store.
            StateError: A partition does not hold the version.
        """
        which = _by_partition(uids, version)
        listed = self.known(operator, store)
        if listed is not None:
            _check_count(which, listed)
            wanted = only if only is not None else range(listed.partitions)
            return listed, self._open(operator, store, version, wanted, uids=which)[1]
        count = self.info.partitions.get((operator, store), 0)
        head = self._command()
        raw, opened = self._open(operator, store, version, range(count), uids=which, head=head)
        self._known = parse_operators(raw)
        listed = self._operator(operator, store)
        _check_count(which, listed)
        if listed.partitions > count:
            more = range(count, listed.partitions)
            opened += self._open(operator, store, version, more, uids=which)[1]
        return listed, opened

    def _open(
        self,
        operator: int,
        store: str,
        version: int | None,
        partitions: Sequence[int],
        *,
        uids: Mapping[int, str],
        head: Command | None = None,
    ) -> tuple[Any, list[Opened]]:
        of = self.store_id(operator, store)
        ids = [PartitionId(of, partition) for partition in partitions]
        commands = [*([head] if head else []), *open_commands(ids, version, uids=uids)]
        replies = self._client.call("opening the state", commands) if commands else []
        first = replies.pop(0) if head else None
        return first, read_replies(ids, replies, version=version)

    def _command(self) -> Command:
        return ("HGETALL", keys.query(self.info.gen, tenant=self._tenant))

    def _operator(self, operator: int, store: str) -> OperatorInfo:
        found = self._known.get((operator, store))
        if found is None:
            there = ", ".join(f"{one.operator} ({one.store})" for one in self._known.values())
            raise NotFoundError(
                f"reading operator {operator}, store '{store}'",
                found=f"query '{self.info.name or self.info.id}' has no such operator or store",
                advice=f"Operators and stores that have state: {there or 'none'}.",
            )
        return found


def _by_partition(uids: Sequence[str] | None, version: int | None) -> Mapping[int, str]:
    if uids is None:
        return {}
    if version is None or not all(map(is_uid, uids)):
        raise ConfigError(
            "opening the state by unique ids",
            found="there is no version with them" if version is None else "one is malformed",
            advice="Give the version, and its ids as the commit log of the checkpoint lists them.",
        )
    return dict(enumerate(uids))


def _check_count(uids: Mapping[int, str], listed: OperatorInfo) -> None:
    if uids and len(uids) != listed.partitions:
        raise ConfigError(
            "opening the state by unique ids",
            found=f"{len(uids)} ids were given for {listed.partitions} partitions",
            advice="Give one for each partition, in their order.",
        )
