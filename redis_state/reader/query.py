"""A streaming query whose state is read."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import NotFoundError
from redis_state.ids import DEFAULT_STORE, PartitionId, StoreId
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.partition import Opened, open_commands, read_opened
from redis_state.reader.registry import OperatorInfo, QueryInfo, parse_operators


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

    def operators(self) -> list[OperatorInfo]:
        """The stateful operators and their stores, as Redis lists them now."""
        (raw,) = self._client.call("reading a query", [self._command()])
        self._known = parse_operators(raw)
        return list(self._known.values())

    def operator(self, operator: int = 0, store: str = DEFAULT_STORE) -> OperatorState:
        """The state of one operator; nothing is asked of Redis yet.

        Args:
            operator: Spark's id of the operator: 0 for the first of the query.
            store: Spark's name of the store; only stream-stream joins have several.
        """
        return OperatorState(self._client, self, operator, store)

    def open(
        self, operator: int, store: str, version: int | None
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Open all partitions of a store, in one round trip if their number is listed.

        Raises:
            NotFoundError: There is no such operator or store.
            StateError: A partition does not hold the version.
        """
        listed = self._known.get((operator, store))
        count = listed.partitions if listed else self.info.partitions.get((operator, store), 0)
        ids = self._ids(operator, store, range(count))
        head = [] if listed else [self._command()]
        replies = self._client.call("opening the state", [*head, *open_commands(ids, version)])
        if listed is None:
            self._known = parse_operators(replies.pop(0))
            listed = self._operator(operator, store)
            if listed.partitions > count:
                more = self._ids(operator, store, range(count, listed.partitions))
                ids += more
                replies += self._client.call("opening the state", open_commands(more, version))
        opened = [
            read_opened(id_, reply, version=version)
            for id_, reply in zip(ids, replies, strict=True)
        ]
        return listed, [one for one in opened if one is not None]

    def _command(self) -> tuple[str, str]:
        return ("HGETALL", keys.query(self.info.gen, tenant=self._tenant))

    def _ids(self, operator: int, store: str, partitions: range) -> list[PartitionId]:
        of = StoreId(self.info.gen, operator, store, self._tenant)
        return [PartitionId(of, partition) for partition in partitions]

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
