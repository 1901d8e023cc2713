"""Past of a store from its retained versions: the number of rows that each batch changed.

Reads manifests and, of the largest partitions, the header of one segment, but no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.entry import Entry, Segment, placed_segment
from redis_state.format.header import FIELD, Header
from redis_state.format.segment import read_header
from redis_state.ids import EMPTY_UID, PartitionId, StoreId
from redis_state.status.query_status import PartitionStatus, QueryStatus, StoreStatus

_COMMANDS_AT_ONCE = 256
_HEADERS_MAX = 16
_WHAT = "looking for causes of growth"


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """Retained versions of one partition.

    Attributes:
        deltas: By version, the newest first: gapless deltas on the confirmed version's timeline.
        base: The newest segment of the timeline that needs no older one; ``None`` without any.
        header: Header of that segment; ``None`` if it has none or was not read.
    """

    status: PartitionStatus
    deltas: Mapping[int, Entry]
    base: Segment | None
    header: Header | None = None

    @property
    def entries(self) -> list[Entry]:
        """Entries of the deltas, the newest first; of the base without any delta."""
        base = [] if self.base is None else [self.base.entry]
        return list(self.deltas.values()) or base


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """Retained versions of all partitions of a store.

    Attributes:
        now_ms: Time of the read, in ms since 1970 by the server's clock.
        live: Keys after each version that every partition has, the oldest first, without those of
            internal families.
        changed: Rows that these versions changed, removals included.
    """

    status: StoreStatus
    now_ms: int
    partitions: tuple[PartitionHistory, ...]
    live: Mapping[int, int]
    changed: Mapping[int, int]

    @property
    def expires(self) -> bool:
        """True if rows have a time to live; then keys are counted until they are left out."""
        return any(entry.time for one in self.partitions for entry in one.entries[:1])


def histories(client: Client, query: QueryStatus, *, tenant: str) -> list[StoreHistory]:
    """Reads the history of each store of a query.

    Raises:
        FormatError: A header is damaged. A partition with a damaged manifest is left out: its
            status has the problem.
        UnavailableError: The server gives no answer.
    """
    stores = [
        (of, StoreId(query.gen, of.operator, of.store, tenant), _readable(of))
        for of in query.stores
    ]
    ids = [PartitionId(store, one.partition) for _, store, all_ in stores for one in all_]
    commands = [("HGETALL", keys.meta(id_)) for id_ in ids]
    manifests = client.call_in_pieces(_WHAT, commands, at_once=_COMMANDS_AT_ONCE)
    found = [
        (of, store, [_history(one, next(manifests)) for one in all_]) for of, store, all_ in stores
    ]
    return [
        _store_history(of, query.now_ms, _with_headers(client, store, all_))
        for of, store, all_ in found
    ]


def _readable(of: StoreStatus) -> list[PartitionStatus]:
    return [one for one in of.partitions if not one.problem and one.confirmed]


def _history(status: PartitionStatus, raw: Mapping[bytes, bytes]) -> PartitionHistory:
    """Walks from the opened version to its parents; it may be newer than the status by now."""
    try:
        at, uid = int(raw[b"o"]), raw[b"ou"].decode("ascii")
        deltas: dict[int, Entry] = {}
        base: Segment | None = None
        while at > 0:
            snapshot, delta = _segment(raw, f"s:{at}:{uid}"), _segment(raw, f"d:{at}:{uid}")
            alone = snapshot or (delta if delta is not None and delta.alone else None)
            base = base or alone
            if delta is None:
                break
            deltas[at] = delta.entry
            # A delta with all rows needs no parent, but the parent still shows the past.
            at, uid = at - 1, delta.entry.ref
            if uid == EMPTY_UID:
                break
    except (FormatError, LookupError, ValueError):
        return PartitionHistory(status, {}, None)
    return PartitionHistory(status, deltas, base)


def _segment(raw: Mapping[bytes, bytes], field: str) -> Segment | None:
    entry = raw.get(field.encode())
    return None if entry is None else placed_segment(raw, field.encode(), entry)


def _key(id_: PartitionId, base: Segment) -> str:
    return keys.segment(id_, base.ident, base.gen)


def _with_headers(
    client: Client, store: StoreId, all_: Sequence[PartitionHistory]
) -> list[PartitionHistory]:
    """Reads the headers of the largest partitions; skips headers that are gone by now."""
    largest = sorted(all_, key=lambda one: -one.status.bytes)[:_HEADERS_MAX]
    wanted = [
        (one, _key(PartitionId(store, one.status.partition), one.base), one.base)
        for one in largest
        if one.base is not None and one.base.entry.header
    ]
    raws = client.call(_WHAT, [("HMGET", key, FIELD) for _, key, _ in wanted]) if wanted else []
    headers: dict[int, Header] = {}
    for (one, key, base), raw in zip(wanted, raws, strict=True):
        if raw[0] is not None:
            (opened,) = client.opened(key, [FIELD], raw)
            headers[one.status.partition] = read_header(base, opened)
    return [
        PartitionHistory(one.status, one.deltas, one.base, headers.get(one.status.partition))
        for one in all_
    ]


def _store_history(of: StoreStatus, now_ms: int, all_: Sequence[PartitionHistory]) -> StoreHistory:
    versions = _common(one.deltas for one in all_)
    entries = {version: [one.deltas[version] for one in all_] for version in versions}
    return StoreHistory(
        of,
        now_ms,
        tuple(all_),
        {version: sum(one.live - one.internal for one in of_) for version, of_ in entries.items()},
        {version: sum(one.rows for one in of_) for version, of_ in entries.items()},
    )


def _common(all_: Iterable[Mapping[int, Entry]]) -> list[int]:
    """Returns the versions that every partition has, the oldest first."""
    sets = [set(one) for one in all_]
    return sorted(set.intersection(*sets)) if sets else []
