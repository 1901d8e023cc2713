"""Reading a version piece by piece gives what merging whole segments gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from redis_state.errors import FormatError
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import Appended, Value, stored_key
from redis_state.format.segment import SegmentContent, SegmentWriter, read_segment
from redis_state.protocol.version_rows import VersionRows
from tests.support.whole_versions import apply_row, merge

SCHEMA = '{"type":"struct","fields":[]}'
PLAIN = Family(0, "default", "none", (), SCHEMA, SCHEMA)
LISTS = Family(1, "lists", "none", (), SCHEMA, SCHEMA, multi_value=True)
PREFIX = Family(2, "prefix", "prefix", (1,), SCHEMA, SCHEMA)
RANGE = Family(3, "range", "range", (0,), SCHEMA, SCHEMA)
TIMERS = Family(4, "timers", "ts-prefix", (), SCHEMA, SCHEMA)
AFTER = Family(5, "after", "ts-postfix", (), SCHEMA, SCHEMA)
ALL = (PLAIN, LISTS, PREFIX, RANGE, TIMERS, AFTER)


class Memory:
    """The segments of one partition."""

    def __init__(self) -> None:
        self.fields: dict[Segment, dict[str, bytes]] = {}
        self.newest: list[Segment] = []

    def fetch(self, segment: Segment, names: Sequence[str]) -> list[bytes | None]:
        return [self.fields[segment].get(name) for name in names]

    def add(
        self,
        version: int,
        rows: dict[bytes, Value],
        families: Sequence[Family],
        *,
        live: int = 0,
        tombstones: Sequence[Tombstone] = (),
        with_families: bool = True,
        snapshot: bool = False,
    ) -> Segment:
        ident = f"s:{version}:w" if snapshot else f"d:{version}:u{version}"
        writer = SegmentWriter(ident, families)
        writer.add(rows)
        ref = "w" if snapshot else f"u{version - 1}" if version > 1 else "-"
        entry = writer.finish(
            ref=ref, live=live, with_families=with_families, tombstones=tombstones
        )
        segment = Segment(snapshot, version, f"u{version}", entry)
        self.fields[segment] = writer.fields
        self.newest.insert(0, segment)
        return segment

    def contents(self) -> list[tuple[Segment, SegmentContent]]:
        return [(one, read_segment(one, self.fields[one])) for one in reversed(self.newest)]


def key_of(family: Family, chance: random.Random, span: int) -> bytes:
    number = b"%06d" % chance.randrange(span)
    if family is PREFIX:
        return stored_key(family.id, b"\x02\0\0\0" + number[-2:] + number)
    return stored_key(family.id, number + b"-" * 8)


def change(
    chance: random.Random, size: int, span: int, *, base: bool
) -> tuple[dict[bytes, Value], list[Tombstone]]:
    """Rows and tombstones of a delta; a base only puts."""
    rows: dict[bytes, Value] = {}
    for _ in range(size):
        family = chance.choice(ALL)
        key = key_of(family, chance, span)
        if base:
            rows[key] = b"\xc4\x02" + b"%02d" % chance.randrange(100)
        elif chance.random() < 0.3:
            rows[key] = None
        elif family is LISTS:
            rows[key] = Appended(b"\xc4\x01a")
        else:
            rows[key] = b"\xc4\x02" + b"%02d" % chance.randrange(100)
    tombstones: list[Tombstone] = []
    if not base and chance.random() < 0.4:
        low, high = sorted(b"%06d" % chance.randrange(span) for _ in range(2))
        family = chance.choice((PLAIN, RANGE, TIMERS))
        tombstones.append(Tombstone(family.id, low, chance.choice((high, None))))
    return rows, tombstones


def with_live(memory: Memory) -> Memory:
    """Copies the memory with the right number of live keys in each entry."""
    counted = Memory()
    rows: dict[bytes, bytes] = {}
    for segment, content in memory.contents():
        for tombstone in content.tombstones:
            for key in [k for k in rows if k[1] == tombstone.family and tombstone.covers(k[2:])]:
                del rows[key]
        for key, value in content.rows.items():
            apply_row(rows, key, value)
        again = replace(segment, entry=replace(segment.entry, live=len(rows)))
        counted.fields[again] = memory.fields[segment]
        counted.newest.insert(0, again)
    return counted


@pytest.mark.parametrize("snapshot", [False, True], ids=["first delta", "snapshot"])
@pytest.mark.parametrize("seed", range(12))
def test_piecewise_version_equals_merged_segments(seed: int, snapshot: bool) -> None:
    chance = random.Random(seed)
    memory, span = Memory(), chance.choice((50, 3000))
    begin, grow = chance.choice(((5, 2000), (3000, 5), (400, 400), (0, 300)))
    version = 7 if snapshot else 1
    rows, _ = change(chance, begin, span, base=True)
    memory.add(version, rows, ALL, snapshot=snapshot)
    for number in range(version + 1, version + 1 + chance.randrange(4)):
        rows, tombstones = change(chance, grow, span, base=False)
        memory.add(number, rows, ALL, tombstones=tombstones, with_families=False)
    memory = with_live(memory)
    expected = merge(memory.contents())
    version_rows = VersionRows(memory.fetch, memory.newest)
    buckets = version_rows.fitting_buckets()
    writer = SegmentWriter("s:99:x", version_rows.families, buckets)
    pieces: dict[str, bytes] = {}
    for group in version_rows.hashed(buckets):
        writer.add(group)
        pieces |= writer.drain()
    for family in version_rows.ordered_families():
        for _ in writer.add_ordered(family, version_rows.ordered(family)):
            pieces |= writer.drain()
    live = len(expected.rows)
    version_rows.check(live)
    entry = writer.finish(ref="x", live=live, with_families=True)
    pieces |= writer.drain()
    found = read_segment(Segment(True, 99, "u99", entry), pieces)
    assert dict(found.rows) == expected.rows
    assert found.families == ALL
    if live > 1000:
        assert entry.buckets >= live // 512
    as_it_lies = VersionRows(memory.fetch, memory.newest)
    every = [row for group in as_it_lies.hashed() for row in group.items()]
    for family in as_it_lies.ordered_families():
        every += as_it_lies.ordered(family)
    as_it_lies.check(len(every))
    assert dict(every) == expected.rows


def test_base_that_contradicts_the_manifest_is_refused() -> None:
    memory = Memory()
    segment = memory.add(3, {stored_key(0, b"k"): b"v"}, (PLAIN,), live=1, snapshot=True)
    entry = segment.entry
    for checksum, live in ((entry.checksum ^ 1, 1), (entry.checksum, 2)):
        wrong = replace(segment, entry=replace(entry, checksum=checksum, live=live))
        memory.fields[wrong] = memory.fields[segment]
        version_rows = VersionRows(memory.fetch, [wrong])
        rows = [group for group in version_rows.hashed() if group]
        with pytest.raises(FormatError):
            version_rows.check(len(rows))


def test_rows_of_a_removed_family_are_refused_unless_they_are_taken_away() -> None:
    for whole in (True, False):
        memory = Memory()
        keys = {stored_key(3, b"a"): b"v", stored_key(0, b"k"): b"v"}
        memory.add(3, dict(keys), (PLAIN, RANGE), live=2, snapshot=True)
        gone = [Tombstone(3, None, None)] if whole else []
        memory.add(4, {}, (PLAIN,), live=1, tombstones=gone)
        version_rows = VersionRows(memory.fetch, memory.newest)
        rows = [row for group in version_rows.hashed() for row in group]
        assert rows == [stored_key(0, b"k")]
        assert version_rows.ordered_families() == [3]
        if whole:
            assert list(version_rows.ordered(3)) == []
            version_rows.check(1)
        else:
            with pytest.raises(FormatError, match="belongs to no family"):
                list(version_rows.ordered(3))
