"""The state store in plain dictionaries: what the contract tests hold the real one against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis_state.codec import MSGPACK, Codec
from redis_state.errors import ConflictError, StateError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store import KeyValue, Operation, State, StateStore, StateStoreMetrics, following

Rows = dict[bytes, bytes]


@dataclass
class Partition:
    """All that there is of one partition."""

    versions: dict[int, Rows] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    holder: str = ""
    opened: int = 0

    def take(self, run: str, version: int) -> None:
        """Raises: ConflictError: A newer run holds it, or went on."""
        if run not in self.runs:
            self.runs.append(run)
        if self.holder == run:
            if version < self.opened:
                raise ConflictError("model", found="overtaken")
            return
        if self.holder and self.runs.index(run) < self.runs.index(self.holder):
            raise ConflictError("model", found="a newer run holds it")
        self.holder, self.opened = run, version
        self.versions = {at: rows for at, rows in self.versions.items() if at <= version}


World = dict[StateStoreId, Partition]


class ModelStore(StateStore):
    """One version and changes over it."""

    def __init__(self, provider: ModelProvider, version: int, rows: Rows) -> None:
        self._provider, self._codec = provider, provider.codec
        self._version, self._rows = version, dict(rows)
        self._begun_with = len(rows)
        self._state = State.OPEN

    @property
    def id(self) -> StateStoreId:
        return self._provider.id.store_id

    @property
    def version(self) -> int:
        return self._version

    @property
    def has_committed(self) -> bool:
        return self._state is State.COMMITTED

    @property
    def metrics(self) -> StateStoreMetrics:
        committed = self._state is State.COMMITTED
        return StateStoreMetrics(len(self._rows) if committed else self._begun_with, 0)

    def get(self, key: Any) -> Any:
        data = self._rows.get(self._codec.encode_key(key))
        return None if data is None else self._codec.decode_value(data)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        encoded = [self._codec.encode_key(key) for key in keys]
        found = [self._rows.get(key) for key in encoded]
        return [None if data is None else self._codec.decode_value(data) for data in found]

    def prefetch(self, keys: Iterable[Any]) -> int:
        return len([self._codec.encode_key(key) for key in keys])

    def put(self, key: Any, value: Any) -> None:
        encoded, data = self._codec.encode_key(key), self._codec.encode_value(value)
        self._update()
        self._rows[encoded] = data

    def put_many(self, keys: Any, values: Any = None, /) -> None:
        encode_key, encode_value = self._codec.encode_key, self._codec.encode_value
        if values is None:
            given = list(keys.items() if isinstance(keys, Mapping) else keys)
        else:
            keys, values = list(keys), list(values)
            if len(keys) != len(values):
                raise UsageError("putting many rows", found="keys without values")
            given = list(zip(keys, values, strict=True))
        rows = [(encode_key(key), encode_value(value)) for key, value in given]
        if rows:
            self._update()
        self._rows.update(rows)

    def remove(self, key: Any) -> None:
        encoded = self._codec.encode_key(key)
        self._update()
        self._rows.pop(encoded, None)

    def remove_many(self, keys: Iterable[Any]) -> None:
        encoded = [self._codec.encode_key(key) for key in keys]
        if encoded:
            self._update()
        for key in encoded:
            self._rows.pop(key, None)

    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[KeyValue]:
        low = b"" if start is None else self._codec.encode_key(start)
        return self._between(low, None if end is None else self._codec.encode_key(end))

    def prefix_scan(self, prefix: Any) -> Iterator[KeyValue]:
        return self._between(*self._codec.prefix_range(prefix))

    def commit(self) -> int:
        self._move(Operation.COMMIT)
        partition, run = self._provider.partition, self._provider.id.run_id
        try:
            partition.take(run, self._version)
        except ConflictError:
            self._move(Operation.FAIL)
            raise
        partition.versions[self._version + 1] = dict(self._rows)
        self._move(Operation.SUCCEED)
        return self._version + 1

    def abort(self) -> None:
        self._move(Operation.ABORT)
        if self._state is State.ABORTED:
            self._rows = dict(self._provider.rows_of(self._version))

    def _between(self, low: bytes, high: bytes | None) -> Iterator[KeyValue]:
        rows = sorted(self._rows.items())
        inside = [row for row in rows if low <= row[0] and (high is None or row[0] < high)]
        return iter(
            [(self._codec.decode_key(k), self._codec.decode_value(data)) for k, data in inside]
        )

    def _update(self) -> None:
        was = self._state
        self._move(Operation.UPDATE)
        if was is not State.UPDATING:
            try:
                self._provider.partition.take(self._provider.id.run_id, self._version)
            except ConflictError:
                self._state = was
                raise

    def _move(self, operation: Operation) -> None:
        self._state = following(self._state, operation, id_=self.id, version=self._version)


class ModelProvider:
    """The versions of one partition for one run."""

    def __init__(
        self,
        id_: StateStoreProviderId,
        world: World,
        *,
        codec: Codec = MSGPACK,
        expect_existing: bool = False,
    ) -> None:
        self.id = id_
        self.codec = codec
        self._world = world
        self._expect_existing = expect_existing

    @property
    def partition(self) -> Partition:
        return self._world.setdefault(self.id.store_id, Partition())

    def rows_of(self, version: int) -> Rows:
        """Raises: StateError: There is no such version."""
        known = self.id.store_id in self._world
        if version == 0 and (known or not self._expect_existing):
            return {}
        rows = self._world[self.id.store_id].versions.get(version) if known else None
        if rows is None:
            raise StateError("model", found="no such version")
        return rows

    def get_store(self, version: int) -> StateStore:
        partition = self._world.get(self.id.store_id)
        rows = self.rows_of(version)
        if partition is not None and partition.holder == self.id.run_id:
            if version < partition.opened:
                raise ConflictError("model", found="overtaken")
            partition.opened = version
        return ModelStore(self, version, rows)

    def get_read_store(self, version: int) -> StateStore:
        return ModelStore(self, version, self.rows_of(version))

    def latest(self) -> int | None:
        partition = self._world.get(self.id.store_id)
        return max(partition.versions, default=0) if partition else None

    def close(self) -> None:
        return None
