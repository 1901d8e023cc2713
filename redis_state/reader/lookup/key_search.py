"""Finds keys: in their likely partitions first, then in the others, in bounded pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from redis_state.errors import ConfigError
from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.header import ORDERED_KINDS, Family
from redis_state.format.visible import time_of, visible_values
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BYTES_MAX
from redis_state.reader.family import FamilySource
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.lookup.many_keys import look_up
from redis_state.reader.lookup.row_sizes import decoded_bytes
from redis_state.reader.scan import families_of
from redis_state.reader.table_columns import RowCodec
from redis_state.reader.version_request import VersionRequest
from redis_state.rows.python_codec import PythonCodec
from redis_state.types.schema import Atomic, Struct, Type

KEYS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 16 << 20
_KEPT_BYTES_MAX = BYTES_MAX // 2
"""Bound of a state's decoded blocks up to which they are cached for any number of keys."""

_ENOUGH = 64
_HASHES = 1 << 30
_REALS = ("float", "double")

_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Maps a byte to the byte with its bits in the opposite order."""

Hit = tuple[RowCodec, bytes]
"""A value that was found, and its codec."""


@dataclass(frozen=True, slots=True)
class HitGroup:
    """Values that were found together in one partition.

    Attributes:
        codec: Codec of the values.
        places: Positions of the keys in the call.
        values: In the order of `places`.
    """

    codec: RowCodec
    partition: int
    places: Sequence[int]
    values: Sequence[bytes]


class Hits:
    """Values that were found for the keys of one call.

    Args:
        size: Number of keys.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.groups: list[HitGroup] = []
        self.count = 0

    def __len__(self) -> int:
        return self._size

    def add(self, group: HitGroup) -> None:
        """Adds a group; empty groups are ignored."""
        if group.places:
            self.groups.append(group)
            self.count += len(group.places)

    def places(self) -> Iterator[int]:
        """Yields the positions of the keys that were found."""
        return chain.from_iterable(group.places for group in self.groups)

    def left(self) -> list[int]:
        """Returns the positions of the keys that were not found."""
        if self.count == self._size:
            return []
        there = set(self.places())
        return [at for at in range(self._size) if at not in there]

    def in_order(self) -> list[Hit | None]:
        """Returns the hit of each key of the call, ``None`` for absent keys."""
        found: list[Hit | None] = [None] * self._size
        for group in self.groups:
            for at, value in zip(group.places, group.values, strict=True):
                found[at] = group.codec, value
        return found


class _Placement:
    """Observed partitions of keys.

    Most operators shuffle by the columns of their state's key, so a key can be in one partition
    only. A few shuffle by other columns, and nothing in the state records that. Then n keys with
    distinct hashes would all lie in their likely partitions by accident with a chance of 2^-n, or
    less.

    Attributes:
        scattered: Whether a key was found outside of its likely partition.
    """

    def __init__(self) -> None:
        self.scattered = False
        self._hashes: set[int] = set()

    def found(self, codec: RowCodec, keys: Iterable[Any]) -> None:
        """Records keys that were found in their likely partitions."""
        if isinstance(codec, PythonCodec) or len(self._hashes) >= _ENOUGH:
            return
        for key in keys:
            # The same key again, or another one with the same hash, proves nothing more.
            if len(self._hashes) >= _ENOUGH:
                return
            self._hashes.add(codec.likely_partition(key, partitions=_HASHES))

    def is_certain(self, codec: RowCodec) -> bool:
        """Returns whether a key that is not in its likely partition is absent."""
        if isinstance(codec, PythonCodec) or self.scattered or len(self._hashes) < _ENOUGH:
            return False
        # One real number may have several binary forms, and not every operator normalizes them.
        return not _has_reals(codec.shuffled_by)


_KeysByNumber = tuple[Opened, list[int]]


class KeyedReads:
    """Finds keys of one family, and remembers whether their partitions are predictable.

    Errors are those of `OperatorState.get`.
    """

    def __init__(self, of: FamilySource) -> None:
        self._of = of
        self._placement = _Placement()

    def find(self, keys: AskedKeys, wanted: VersionRequest) -> tuple[RowCodec, Hits]:
        """Looks keys up, all at one version.

        Returns:
            The codec of the family, and the values that were found.
        """
        search, _ = self._search(keys, wanted)
        return search.codec, search.hits

    def partition_of(self, key: Any) -> int:
        """Returns the current partition of a key; of an absent key, its likely partition."""
        search, info = self._search(AskedKeys([key]), VersionRequest())
        if search.hits.groups:
            return search.hits.groups[-1].partition
        return search.codec.likely_partition(key, partitions=info.partitions)

    def _search(self, keys: AskedKeys, wanted: VersionRequest) -> tuple[_Search, OperatorInfo]:
        try:
            search, info = self._searched(keys, wanted)
        except ConfigError:
            # The keys may fit the columns of the version, but not those that were expected.
            _, opened = self._open(wanted, None)
            if not self._of.choice.corrected(families_of(self._of.client, opened)):
                raise
        else:
            if search.other is None or not self._of.choice.corrected(search.other):
                return search, info
        # Other columns lead to other partitions.
        self._placement = _Placement()
        return self._searched(keys, wanted)

    def _searched(self, keys: AskedKeys, wanted: VersionRequest) -> tuple[_Search, OperatorInfo]:
        every = False
        while True:
            codec, info, opened, places, complete = self._begin(keys, wanted, every=every)
            search = _Search(self._of, codec, keys)
            search.run([(opened[number], of_one) for number, of_one in places.items()])
            left = search.hits.left()
            is_final = info.partitions == 1 and not info.alone
            if search.other is None:
                self._placement.found(codec, map(keys.at, search.hits.places()))
                is_final |= self._placement.is_certain(codec)
            if not left or is_final:
                return search, info
            if not complete:
                others = self._others(info, wanted, opened)
                if others is None:
                    every = True
                    continue
                opened |= others
            before = search.hits.count
            rest = _rest(opened, places, left)
            if len(left) <= KEYS_AT_ONCE:
                search.run(list(rest))
            else:
                for one in rest:
                    search.run([one])
            self._placement.scattered |= search.hits.count > before
            if info.alone:
                info = self._search_added(search, info, wanted)
            return search, info

    def _search_added(
        self, search: _Search, info: OperatorInfo, wanted: VersionRequest
    ) -> OperatorInfo:
        """Searches the remaining keys in partitions that Python has added meanwhile."""
        left = search.hits.left()
        if not left:
            return info
        listed = self._of.source.listed(self._of.operator, self._of.store)
        if listed is None or listed.partitions <= info.partitions:
            return info
        now, opened = self._open(wanted, range(info.partitions, listed.partitions))
        search.run([(one, left) for one in opened])
        return now

    def _begin(
        self, keys: AskedKeys, wanted: VersionRequest, *, every: bool
    ) -> tuple[RowCodec, OperatorInfo, dict[int, Opened], dict[int, list[int]], bool]:
        """Opens the likely partitions of the keys; all partitions while nothing is known yet."""
        of = self._of
        info, codec = of.source.known(of.operator, of.store), of.choice.known
        complete = every or info is None or codec is None or self._placement.scattered
        if info is None or codec is None or complete:
            info, opened = self._open_all(wanted, info)
            codec = self._of.choice.likely(info, opened)
            places = _by_partition(codec, info, keys)
        else:
            places = _by_partition(codec, info, keys)
            info, opened = self._open(wanted, sorted(places))
        return codec, info, {one.id.partition: one for one in opened}, places, complete

    def _open(
        self, wanted: VersionRequest, only: Sequence[int] | None
    ) -> tuple[OperatorInfo, list[Opened]]:
        return self._of.source.open_at(self._of.operator, self._of.store, wanted, only=only)

    def _open_all(
        self, wanted: VersionRequest, known: OperatorInfo | None
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Opens every partition; uses the known number of partitions unless it has changed."""
        if known is not None:
            info, opened = self._open(wanted, range(known.partitions))
            if info.partitions == known.partitions:
                return info, opened
        return self._open(wanted, None)

    def _others(
        self, info: OperatorInfo, wanted: VersionRequest, opened: Mapping[int, Opened]
    ) -> dict[int, Opened] | None:
        """Opens the other partitions; ``None`` if the first ones have changed.

        The first ones are opened again together with them. If the query went back and reached the
        version again, its number is the same, but not its unique id.
        """
        if info.alone:
            _, found = self._open(wanted, [n for n in range(info.partitions) if n not in opened])
            return {one.id.partition: one for one in found}
        _, found = self._open(wanted, list(range(info.partitions)))
        every = {one.id.partition: one for one in found}
        if any(every[number].pin != one.pin for number, one in opened.items()):
            return None
        return {number: one for number, one in every.items() if number not in opened}


class _Search:
    """Search state of one look-up call.

    Attributes:
        hits: Values that were found.
        other: Family table of a partition whose key columns are not those of the codec; ``None``
            if no partition has others.
    """

    def __init__(self, of: FamilySource, codec: RowCodec, keys: AskedKeys) -> None:
        self._of = of
        self.codec = codec
        self._keys = keys
        self._stored = keys.stored(codec)
        self.other: Sequence[Family] | None = None
        self.hits = Hits(len(keys))

    def run(self, asked: Sequence[_KeysByNumber]) -> None:
        """Searches for keys, each in a partition that was not searched for it before.

        Many keys are sorted by their blocks, so that each block is read about once. Blocks are kept
        for further calls if the cache has room for all of them.
        """
        kind, cache = self.codec.family.kind, self._of.source.blocks
        keep = True
        if sum(len(of_one) for _, of_one in asked) > KEYS_AT_ONCE:
            keep = sum(decoded_bytes(opened) for opened, _ in asked) <= _KEPT_BYTES_MAX
            asked = [(opened, _by_block(self._stored, of_one, kind)) for opened, of_one in asked]
        for piece in _pieces(asked):
            places = {opened.id.partition: of_one for opened, of_one in piece}
            wanted = [(opened, [self._stored[at] for at in of_one]) for opened, of_one in piece]
            for found in look_up(self._of.client, wanted, kind=kind, cache=cache, keep=keep):
                of_one = places[found.opened.id.partition]
                if all(found.opened is not opened for opened, _ in piece):
                    self._of.source.moved(found.opened)
                own = self._of.choice.codec(found.families)
                if own is None:
                    continue  # no rows yet, or a family newer than this version
                values, stored = found.values, self._stored
                if own.layout != self.codec.layout:
                    # The registry describes another layout of keys than this version has.
                    self.other = found.families
                    stored = self._keys.stored(own)
                    again = [(found.opened, [stored[at] for at in of_one])]
                    (other,) = look_up(self._of.client, again, kind=own.family.kind)
                    values = other.values
                if own.family.ttl:
                    values = visible_values(values, time_of(found.opened.segments))
                there = list(map(values.get, map(stored.__getitem__, of_one)))
                if None in there:
                    of_one = [
                        at for at, value in zip(of_one, there, strict=True) if value is not None
                    ]
                self.hits.add(
                    HitGroup(
                        own,
                        found.opened.id.partition,
                        of_one,
                        [value for value in there if value is not None],
                    )
                )


def _by_partition(codec: RowCodec, info: OperatorInfo, keys: AskedKeys) -> dict[int, list[int]]:
    """Groups the positions of keys by their likely partition."""
    likely = keys.likely_partitions(codec, partitions=info.partitions)
    found: dict[int, list[int]] = {}
    for at, partition in enumerate(likely):
        if partition in found:
            found[partition].append(at)
        else:
            found[partition] = [at]
    return found


def _rest(
    opened: Mapping[int, Opened], places: Mapping[int, Sequence[int]], left: Sequence[int]
) -> Iterator[_KeysByNumber]:
    """Yields the remaining keys by the partitions in which they were not looked for."""
    for number, one in opened.items():
        searched = set(places.get(number, ()))
        yield one, [at for at in left if at not in searched]


def _by_block(stored: Sequence[bytes], places: Sequence[int], kind: str) -> list[int]:
    """Sorts the positions of keys so that keys of one block are neighbours, in any segment.

    Numbers of buckets are powers of two. A bucket of a small segment has the keys of several
    buckets of a larger segment: those whose numbers end in the same bits.
    """
    if kind in ORDERED_KINDS:
        return sorted(places, key=stored.__getitem__)
    hashes = bucketing_hashes([stored[at] for at in places], kind=kind)
    # Reverse the bits: the lowest becomes the highest.
    form = f"{len(hashes)}I"
    turned = struct.unpack(f">{form}", struct.pack(f"<{form}", *hashes).translate(_TURNED))
    return [places[number] for number in sorted(range(len(places)), key=turned.__getitem__)]


def _pieces(asked: Sequence[_KeysByNumber]) -> Iterator[list[_KeysByNumber]]:
    """Splits a search into pieces whose blocks fit in memory; a piece has at least one key."""
    if len(asked) == 1 and len(asked[0][1]) == 1:
        yield list(asked)
        return
    piece: list[_KeysByNumber] = []
    count = size = 0
    for opened, places in asked:
        each = 1 + sum(
            segment.entry.bytes // max(1, segment.entry.blocks) for segment in opened.segments
        )
        room = max(1, min(KEYS_AT_ONCE, _BYTES_AT_ONCE // each))
        for start in range(0, len(places), room):
            part = places[start : start + room]
            if piece and (count + len(part) > KEYS_AT_ONCE or size > _BYTES_AT_ONCE):
                yield piece
                piece, count, size = [], 0, 0
            if piece and piece[-1][0] is opened:
                yield piece
                piece, count, size = [], 0, 0
            piece.append((opened, part))
            count, size = count + len(part), size + len(part) * each
    if piece:
        yield piece


def _has_reals(type_: Type) -> bool:
    if isinstance(type_, Struct):
        return any(_has_reals(field.type) for field in type_.fields)
    return not isinstance(type_, Atomic) or type_.name in _REALS
