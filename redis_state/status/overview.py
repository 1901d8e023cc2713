"""Reads query status from metadata only: a few bounded pipelines, no script, no change.

Reads the list of checkpoints, then the hash of each query, then the manifest of each partition
with the instances of its query. Each step sends pipelines of a bounded number of commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE, OtherType, time_ms
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.format.entry import FORMATS, ident_of
from redis_state.ids import EMPTY_UID, NUMBER_MAX, PartitionId, StoreId
from redis_state.places.room import bound_in
from redis_state.places.settings import FIELD as PLACES_FIELD
from redis_state.places.settings import Places, places_in
from redis_state.protocol.instances import KEYS_AT_ONCE, decode_instance
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.opening import beyond
from redis_state.protocol.quota import parse_sizes
from redis_state.protocol.registry import (
    FORMAT,
    PYTHON_OPERATOR,
    OperatorInfo,
    QueryInfo,
    newest_of_folder,
    parse_listing,
    parse_operators,
)
from redis_state.protocol.runs import run_of_epoch
from redis_state.protocol.texts import number_or_zero
from redis_state.status.files import largest_change, tally
from redis_state.status.pins import (
    IN_FILE,
    aside_in_files,
    fork_of,
    pins_in,
    titled,
    total_pins,
)
from redis_state.status.query_status import (
    FileTally,
    Hold,
    PartitionStatus,
    QueryStatus,
    StoreStatus,
)

COMMANDS_AT_ONCE = 512
_BEGUN_WORDS = 4
_NAME_WORDS = 3
_BYTES_WORD = 4
_NUMBERS = (
    "confirmed", "newest", "kept", "oldest", "wanted", "rows", "internal_rows", "snapshot",
    "snapshot_bytes", "delta_bytes", "bytes", "pinned_bytes", "foreign_bytes", "file_bytes",
    "history_bytes", "written_ms", "share", "share_bytes", "largest_change",
)  # fmt: skip
_OTHER_TYPE = "its {} is a key of another type"
_GONE = "its manifest is missing, while other partitions have theirs"
_WHAT = "reading the status of queries"
_DELTA, _SNAPSHOT = _SEGMENTS = b"d:", b"s:"
_KINDS = {_DELTA[:1], _SNAPSHOT[:1]}
_COMPLETE = b" c"
"""Begin of the flags of a delta that needs no older segment; no other word begins so after a space,
since all of them are decimal numbers."""
_Reply = Any


def status_of_all(client: Client, *, tenant: str) -> list[QueryStatus]:
    """Reads the status of every query of a server, database and key prefix, by time of creation.

    Raises:
        UnavailableError: The server gives no answer.
    """
    time, raw = client.call(_WHAT, [("TIME",), ("HGETALL", keys.checkpoints(tenant=tenant))])
    queries = sorted(parse_listing(raw), key=lambda info: (info.created_ms, info.gen))
    return _look(client, queries, queries, now_ms=time_ms(time), tenant=tenant)


def status_of(client: Client, info: QueryInfo, *, tenant: str) -> QueryStatus:
    """Reads the status of one query; raises the errors of `status_of_all`."""
    return status_with_older(client, info, tenant=tenant, older=False)[0]


def status_with_older(
    client: Client, info: QueryInfo, *, tenant: str, older: bool = True
) -> list[QueryStatus]:
    """Reads the status of one query, followed by earlier checkpoints of its folder.

    Args:
        older: Whether to read these.

    Raises:
        UnavailableError: The server gives no answer.
    """
    time, raw = client.call(_WHAT, [("TIME",), ("HGETALL", keys.checkpoints(tenant=tenant))])
    queries = parse_listing(raw)
    wanted = [next((one for one in queries if one.gen == info.gen), info)]
    if older and newest_of_folder(queries, wanted[0]).gen == info.gen:
        path = wanted[0].path
        wanted += [one for one in queries if path and one.path == path and one.gen != info.gen]
    return _look(client, wanted, queries, now_ms=time_ms(time), tenant=tenant)


def _look(
    client: Client,
    wanted: Sequence[QueryInfo],
    listed: Sequence[QueryInfo],
    *,
    now_ms: int,
    tenant: str,
) -> list[QueryStatus]:
    called = partial(
        client.call_in_pieces, _WHAT, at_once=COMMANDS_AT_ONCE, of_other_type=OTHER_TYPE
    )
    commands = [
        ("HGETALL", keys.query(one.gen, tenant=tenant)) for one in wanted if one.is_checkpoint
    ]
    raw_sizes, *hashes = called([("HGETALL", keys.sizes(tenant=tenant)), *commands])
    sizes = parse_sizes({} if raw_sizes is OTHER_TYPE else raw_sizes)
    prefix_bytes = sum(one.bytes for one in sizes.values())
    newest = _newest_by_path(listed)
    rest = iter(hashes)
    plans = [_PolledQuery(one, next(rest) if one.is_checkpoint else {}, tenant) for one in wanted]
    replies = called([one for plan in plans for one in plan.commands()])
    found = [
        plan.status(replies, now_ms=now_ms, newest=newest.get(plan.info.path)) for plan in plans
    ]
    found = titled(found, listed)
    return [
        replace(
            one,
            bytes_max=sizes[one.gen].state_max,
            prefix_bytes_max=sizes[one.gen].prefix_max,
            prefix_bytes=prefix_bytes,
        )
        if one.gen in sizes
        else one
        for one in found
    ]


def _newest_by_path(listed: Sequence[QueryInfo]) -> dict[str, str]:
    by_path: dict[str, list[QueryInfo]] = {}
    for info in listed:
        if info.path:
            by_path.setdefault(info.path, []).append(info)
    return {path: newest_of_folder(of, of[0]).gen for path, of in by_path.items()}


class _PolledQuery:
    """Commands for the status of one query, and the parser of their replies."""

    def __init__(
        self, info: QueryInfo, raw: Mapping[bytes, bytes] | OtherType, tenant: str
    ) -> None:
        self.info = info
        self._raw: Mapping[bytes, bytes] = {} if raw is OTHER_TYPE else raw
        self._problems = [info.problem] if info.problem else []
        described: Mapping[tuple[int, str], OperatorInfo] = {}
        if raw is OTHER_TYPE:
            self._problems.append(_OTHER_TYPE.format("hash of operators and runs"))
        elif not raw and info.is_checkpoint:
            self._problems.append("its hash of operators and runs is missing")
        try:
            described = parse_operators(self._raw)
        except FormatError as error:
            self._problems.append(error.found)
        self._stores = [
            (one, [PartitionId(self._store(one, tenant), n) for n in range(self._count(one))])
            for one in described.values()
        ]
        self._ids = [id_ for _, ids in self._stores for id_ in ids]
        self._has_files = PLACES_FIELD.encode() in self._raw

    def _store(self, one: OperatorInfo, tenant: str) -> StoreId:
        return StoreId(self.info.gen, one.operator, one.store, tenant)

    def _count(self, one: OperatorInfo) -> int:
        # An executor that describes a store outside of a task does not know the number.
        count = one.partitions or self.info.partitions.get((one.operator, one.store), 0)
        if not count:
            self._problems.append(f"the number of partitions of operator {one.operator} is unknown")
        return count

    def commands(self) -> Iterator[Command]:
        """Yields the commands for the manifests, then for the owners, then for the files."""
        for id_ in self._ids:
            yield ("HGETALL", keys.meta(id_))
        for start in range(0, len(self._ids), KEYS_AT_ONCE):
            chunk = self._ids[start : start + KEYS_AT_ONCE]
            yield ("MGET", *map(keys.instance, chunk))
        if self._has_files:
            for id_ in self._ids:
                yield ("HGETALL", keys.files(id_))

    def status(self, replies: Iterator[_Reply], *, now_ms: int, newest: str | None) -> QueryStatus:
        """Builds the status from the replies to `commands`."""
        metas = [next(replies) for _ in self._ids]
        owners: list[bytes | None] = []
        while len(owners) < len(self._ids):
            owners += next(replies)
        files = [tally(next(replies)) if self._has_files else None for _ in self._ids]
        rows = iter(map(_partition, self._ids, metas, owners, files))
        unwritten = {id_ for id_, meta in zip(self._ids, metas, strict=True) if not meta}
        stores = tuple(
            self._store_status(one, _without_gone(one, ids, [next(rows) for _ in ids], unwritten))
            for one, ids in self._stores
        )
        epoch = self._raw.get(b"epoch", b"")
        parent, began = fork_of(self._raw)
        places = self._places()
        copied, _, copied_at = self._raw.get(b"copied", b"").partition(b" ")
        return QueryStatus(
            gen=self.info.gen,
            id=self.info.id,
            name=self.info.name,
            created_ms=self.info.created_ms,
            seen_ms=self.info.seen_ms,
            started_ms=number_or_zero(epoch),
            run=run_of_epoch(self._raw, epoch),
            driver_ms=number_or_zero(self._raw.get(b"seen", b"")),
            now_ms=now_ms,
            stores=stores,
            replaced_by="" if newest in (None, self.info.gen) else str(newest),
            problem="; ".join(self._problems),
            copy_every=number_or_zero(self._raw.get(b"copies", b"")),
            copied_version=number_or_zero(copied),
            copied_ms=number_or_zero(copied_at),
            fork_of=parent,
            fork_version=began,
            pins=total_pins(one for of in stores for one in of.partitions),
            moves_history=places is not None and places.moves,
            deletes_files=places is not None and places.deletes,
        )

    def _places(self) -> Places | None:
        try:
            return places_in(self._raw)
        except FormatError as error:
            self._problems.append(error.found)
            return None

    def _store_status(
        self, one: OperatorInfo, partitions: tuple[PartitionStatus, ...]
    ) -> StoreStatus:
        place = f"{one.operator}:{one.store}".encode()
        batch = self._raw.get(b"batch:" + place)
        first: tuple[int | None, int] = (None if one.name == PYTHON_OPERATOR else 0, 1)
        try:
            if batch is not None:
                newest = NewestBatch.parse(batch)
                first = newest.first, newest.first_version
        except FormatError as error:
            self._problems.append(error.found)
        begun = self._raw.get(b"begun:" + place, b"").split(b" ")
        known = len(begun) >= _BEGUN_WORDS
        return StoreStatus(
            one.operator,
            one.store,
            one.name,
            one.families,
            partitions,
            first_batch=first[0],
            first_version=first[1],
            watermark_ms=number_or_zero(begun[3]) if known else None,
            began_ms=number_or_zero(begun[2]) if known else 0,
        )


def _without_gone(
    one: OperatorInfo,
    ids: Sequence[PartitionId],
    partitions: Sequence[PartitionStatus],
    unwritten: Set[PartitionId],
) -> tuple[PartitionStatus, ...]:
    """Returns the partitions, with a problem at those whose manifest was lost.

    If one partition has confirmed a version, all have written it. Unwritten ones at the end may not
    exist (`beyond`).
    """
    gone = {id_ for id_ in ids if id_ in unwritten}
    if gone and not one.alone and any(part.confirmed for part in partitions):
        gone -= beyond(ids, gone)
        return tuple(
            replace(part, problem=part.problem or _GONE) if id_ in gone else part
            for id_, part in zip(ids, partitions, strict=True)
        )
    return tuple(partitions)


def _partition(
    id_: PartitionId,
    raw: Mapping[bytes, bytes] | OtherType,
    owner: bytes | None,
    files: FileTally | None,
) -> PartitionStatus:
    try:
        instance, problem = decode_instance(owner), ""
    except FormatError as error:
        instance, problem = None, error.found
    of = id_.store
    empty = PartitionStatus(
        of.operator, of.store, id_.partition, owner=instance, files=files, problem=problem
    )
    if raw is OTHER_TYPE:
        return replace(empty, problem=_OTHER_TYPE.format("manifest"))
    return empty if not raw else _of_manifest(empty, raw)


def _of_manifest(empty: PartitionStatus, raw: Mapping[bytes, bytes]) -> PartitionStatus:
    format_ = raw.get(b"f", b"")
    if format_ not in FORMATS:
        purged = format_.startswith(b"purged")
        return replace(
            empty,
            problem="it was purged within the last day"
            if purged
            else "it is of a format that this release does not know",
        )
    try:
        found = _counted(empty, raw)
        if all(0 <= getattr(found, name) <= NUMBER_MAX for name in _NUMBERS):
            return found
    except (ValueError, LookupError):
        pass
    return replace(empty, problem="an entry of its manifest is damaged")


def _counted(empty: PartitionStatus, raw: Mapping[bytes, bytes]) -> PartitionStatus:
    """Parses entries in bulk: a server may have a million, of which only a few words count."""
    opened, wanted, floor = int(raw.get(b"o", b"0")), int(raw[b"n"]), int(raw.get(b"w", b"0"))
    at = b"%d:%s" % (opened, raw.get(b"ou", EMPTY_UID.encode()))
    has_places = raw.get(b"f") != FORMAT.encode()
    pins, aside_bytes = pins_in(raw) if has_places else ((), 0)
    names = [name for name in raw if name[:2] in _SEGMENTS]
    texts = [raw[name] for name in names]
    kinds, versions = _split_names(names)
    sizes = list(map(int, [text.split(b" ", _BYTES_WORD + 1)[_BYTES_WORD] for text in texts]))
    bound = bound_in(raw) if has_places else None
    changes = [raw[name] for name in names if name[:2] == _DELTA] if bound else []
    foreign, filed = _take_placed(raw, names, sizes) if has_places else (0, 0)
    is_snapshot = [kind == _SNAPSHOT[:1] for kind in kinds]
    snapshots = list(compress(zip(versions, sizes, strict=True), is_snapshot))
    snapshot, snapshot_bytes = max(snapshots, default=(0, 0))
    total = sum(sizes)
    bases = dict(snapshots)
    if _COMPLETE in b"\n".join(texts):
        # A snapshot counts, where a version has both.
        is_complete = [_COMPLETE in text for text in texts]
        bases = dict(compress(zip(versions, sizes, strict=True), is_complete)) | bases
    text = raw.get(_SNAPSHOT + at, raw.get(_DELTA + at))
    confirmed = text.split(b" ") if text is not None else []
    # The time of a version comes after the count of internal keys.
    words_max = 9 + (b"t" in confirmed[-1]) if confirmed else 0
    internal = int(confirmed[7]) if confirmed and len(confirmed) == words_max else 0
    oldest = min(versions, default=0)
    base = max((version for version in bases if version <= opened), default=0)
    older = sum(compress(sizes, [version <= base for version in versions]))
    return replace(
        empty,
        confirmed=opened,
        newest=int(raw.get(b"l", b"0")),
        kept=len(set(versions)),
        oldest=oldest,
        wanted=wanted,
        held_by=_hold(oldest, bases, max(floor, opened - wanted)) if versions else None,
        rows=int(confirmed[2]) - internal if confirmed else 0,
        internal_rows=internal,
        snapshot=snapshot,
        snapshot_bytes=snapshot_bytes,
        delta_bytes=total - sum(size for _, size in snapshots),
        bytes=total + aside_bytes,
        pinned_bytes=aside_bytes,
        foreign_bytes=foreign,
        file_bytes=filed + aside_in_files(raw) if has_places else 0,
        history_bytes=older - bases.get(base, 0),
        share=bound.share if bound else 0,
        share_bytes=bound.bytes if bound else 0,
        largest_change=largest_change(one for one in changes if not one.endswith(_COMPLETE)),
        pins=pins,
        written_ms=int(raw.get(b"t", b"0")),
        run=raw.get(b"r", b"").decode("ascii", "replace"),
        problem=empty.problem
        or ("" if confirmed or not opened else f"version {opened} is missing"),
    )


def _split_names(names: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Returns the kinds and the versions of segments, by one call for all.

    Raises:
        ValueError: A field has no kind, version and uid.
    """
    if not names:
        return [], []
    words = b":".join(names).split(b":")
    kinds = words[::_NAME_WORDS]
    if len(words) != _NAME_WORDS * len(names) or not _KINDS.issuperset(kinds):
        raise ValueError("the field of a segment is damaged")
    return kinds, list(map(int, words[1::_NAME_WORDS]))


def _take_placed(
    raw: Mapping[bytes, bytes],
    names: Sequence[bytes],
    sizes: list[int],
) -> tuple[int, int]:
    """Sets sizes to 0 where Redis has no key of the partition; returns foreign and file bytes."""
    foreign = filed = 0
    for number, name in enumerate(names):
        place = raw.get(b"a:" + ident_of(name, raw[name].split(b" ", 1)[0]))
        if place is None:
            continue
        if place.startswith(IN_FILE):
            filed += sizes[number]
        else:
            foreign += sizes[number]
        sizes[number] = 0
    return foreign, filed


def _hold(oldest: int, alone: Iterable[int], target: int) -> Hold:
    """Returns the reason for keeping the oldest version (docs/format.md, section 8).

    Args:
        alone: Versions that need no older one.
        target: The newest version that could be the oldest one.
    """
    if oldest >= target:
        return Hold.OPTION
    base = max((version for version in alone if version <= target), default=None)
    if base is None or oldest == base:
        return Hold.SNAPSHOT
    return Hold.MAINTENANCE
