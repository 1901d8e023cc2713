"""Plants a query into a server as docs/format.md says, without the writer's code or any script."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis

from redis_state import keys
from redis_state.format.entry import Entry
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import Value
from redis_state.format.segment import SegmentWriter
from redis_state.ids import PartitionId, StoreId
from redis_state.rows.codec import codec_of
from redis_state.rows.murmur3 import partition_of
from redis_state.rows.unsafe_row import encode

GEN = "0123456789abcdef0123456789abcdef"
QUERY_ID = "6d2bd1e5-0c7c-4c3e-9d77-111111111111"


def schema(**types: str) -> str:
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def family(key: str, value: str, *, kind: str = "none", params: Sequence[int] = ()) -> Family:
    return Family(0, "default", kind, tuple(params), key, value)


PLAIN = family(schema(carrier="string"), schema(count="long", total="double"))


def uid(version: int) -> str:
    return f"{version:032x}"


def plant_checkpoint(parent: Path, *, batches: int) -> Path:
    """The folder of a planted query: so many batches are logged, one more is planned."""
    folder = parent / "checkpoint"
    state = folder / "state"
    state.mkdir(parents=True)
    path = hashlib.sha256(f"file:{state}".encode()).hexdigest()
    (state / "_redis_state").write_text(json.dumps({"format": 1, "gen": GEN, "path": path}))
    for log, entries in (("offsets", batches + 1), ("commits", batches)):
        (folder / log).mkdir()
        for batch in range(entries):
            (folder / log / str(batch)).write_text(f"v1\n{batch}")
            (folder / log / f".{batch}.crc").write_text("crc")
    return folder


@dataclass
class Planted:
    """One operator of a planted query."""

    client: redis.Redis
    family: Family = PLAIN
    partitions: int = 4
    gen: str = GEN
    name: str = "flights"
    operator: int = 0
    store: str = "default"
    tenant: str = ""
    buckets: int | None = None
    others: Sequence[Family] = ()
    times: dict[int, int] = field(default_factory=dict)
    """Of a family with a time to live, the time of each version."""

    live: dict[int, set[bytes]] = field(default_factory=dict)

    def register(self, *, listed: bool = True, name: str | None = None, of: str = "agg") -> None:
        table = [
            self.family.id,
            self.family.name,
            self.family.kind,
            list(self.family.params),
            json.loads(self.family.key_schema),
            json.loads(self.family.value_schema),
            False,
            False,
        ]
        described = {"operator": of, "partitions": self.partitions, "families": [table]}
        query = keys.query(self.gen, tenant=self.tenant)
        self.client.hset(
            query,
            mapping={
                "f": "1",
                "name": self.name,
                "epoch": "1",
                f"op:{self.operator}:{self.store}": json.dumps(described),
            },
        )
        listing = {
            "path": "00",
            "id": QUERY_ID,
            "name": self.name if name is None else name,
            "created": 1,
            "seen": 2,
        }
        checkpoints = keys.checkpoints(tenant=self.tenant)
        self.client.hset(checkpoints, self.gen, json.dumps(listing))
        if listed:
            place = f"{self.gen}:{self.operator}:{self.store}"
            self.client.hset(checkpoints, place, str(self.partitions))

    def id(self, partition: int) -> PartitionId:
        return PartitionId(StoreId(self.gen, self.operator, self.store, self.tenant), partition)

    def key(self, values: Mapping[str, Any]) -> bytes:
        return codec_of(self.family).encode_key(values)

    def value(self, values: Mapping[str, Any], *, expires: int | None = None) -> bytes:
        """A stored value; in a family with a time to live with its expiry, `None` for never."""
        found = b"\0" + encode(codec_of(self.family).values.columns, values)
        if not self.family.ttl:
            return found
        return found + (b"\xff\xff\xff\xff" if expires is None else struct.pack(">I", expires))

    def partition(self, values: Mapping[str, Any]) -> int:
        return partition_of(codec_of(self.family).key, values, partitions=self.partitions)

    def commit(
        self,
        version: int,
        changes: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | bytes | None]],
        *,
        confirmed: bool = True,
    ) -> None:
        """A version of every partition; a value of `None` removes its key, bytes are stored."""
        by_partition: dict[int, dict[bytes, Value]] = {n: {} for n in range(self.partitions)}
        for key, value in changes:
            stored = self.value(value) if isinstance(value, Mapping) else value
            by_partition[self.partition(key)][self.key(key)] = stored
        for number, rows in by_partition.items():
            self.delta(number, version, rows, confirmed=confirmed)

    def delta(
        self,
        partition: int,
        version: int,
        rows: Mapping[bytes, Value],
        *,
        confirmed: bool = True,
        tombstones: Sequence[Tombstone] = (),
        complete: bool = False,
    ) -> Entry:
        live = self.live.setdefault(partition, set())
        if complete:
            live.clear()
        live -= {key for key in live if any(tombstone.covers(key[2:]) for tombstone in tombstones)}
        live |= {key for key, value in rows.items() if value is not None}
        live -= {key for key, value in rows.items() if value is None}
        ident = f"d:{version}:{uid(version)}"
        writer = SegmentWriter(ident, [self.family, *self.others], self.buckets)
        writer.add(rows)
        entry = writer.finish(
            ref=uid(version - 1) if version > 1 else "-",
            live=len(live),
            internal=self._internal(live),
            complete=complete,
            with_families=complete or version == 1,
            tombstones=tombstones,
        )
        entry = replace(entry, time=self.times.get(version, 0))
        self._enter(partition, ident, ident, writer.fields, entry)
        fields = {"f": "1", "e": "1", "r": "run", "n": "2", "w": "0"}
        fields |= {"l": str(version), "lu": uid(version)}
        if confirmed:
            fields |= {"o": str(version), "ou": uid(version)}
        self.client.hset(keys.meta(self.id(partition)), mapping=fields)  # type: ignore[arg-type]  # its stub
        return entry

    def snapshot(self, partition: int, version: int, rows: Mapping[bytes, Value]) -> None:
        """A snapshot beside the deltas, and the deltas up to it dropped.

        Args:
            rows: May have expired rows.
        """
        ident, time_s = f"s:{version}:writer", self.times.get(version, 0)
        writer = SegmentWriter(ident, [self.family, *self.others], self.buckets)
        writer.add(rows)
        live, internal = len(rows), self._internal(rows)
        if time_s:
            own = self.family.id.to_bytes(2, "big")
            limit = struct.pack(">I", time_s)
            live -= sum(
                isinstance(value, bytes) and value[-4:] <= limit
                for key, value in rows.items()
                if key.startswith(own)
            )
        entry = writer.finish(ref="writer", live=live, internal=internal, with_families=True)
        entry = replace(entry, time=time_s)
        self._enter(partition, ident, f"s:{version}:{uid(version)}", writer.fields, entry)
        for old in range(1, version + 1):
            self.drop(partition, f"d:{old}:{uid(old)}")

    def _internal(self, rows: Iterable[bytes]) -> int:
        """The number of keys in internal families."""
        ids = {one.id.to_bytes(2, "big") for one in self.others if one.internal}
        return sum(key[:2] in ids for key in rows) if ids else 0

    def drop(self, partition: int, ident: str) -> None:
        self.client.hdel(keys.meta(self.id(partition)), ident)
        self.client.delete(keys.segment(self.id(partition), ident))

    def _enter(
        self, partition: int, ident: str, name: str, fields: Mapping[str, bytes], entry: Entry
    ) -> None:
        if fields:
            segment = keys.segment(self.id(partition), ident)
            self.client.hset(segment, mapping=dict(fields))  # type: ignore[arg-type]  # its stub
        self.client.hset(keys.meta(self.id(partition)), name, entry.text)
