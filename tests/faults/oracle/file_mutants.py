"""Rules of files (docs/format.md, section 17), and what a mutant does without each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.files import Folder
from redis_state.format.entry import Entry, Segment
from redis_state.format.place import FilePlace
from redis_state.format.rows import Value
from redis_state.format.segment import SegmentWriter
from redis_state.ids import PartitionId
from redis_state.maintain import files, hot_run
from redis_state.places import moving
from redis_state.places.reading import files_of
from redis_state.protocol import Opened
from redis_state.store.local import loading
from tests.faults.oracle.pin_mutants import Edit

FILED_MUTANTS: tuple[tuple[str, str, tuple[Edit, ...]], ...] = (
    (
        "place-of-a-condemned-file",
        "a condemned file gets no segment",
        (
            (
                "place",
                "if state ~= ANNOUNCED and state ~= USED then return {'GONE'} end\n",
                "segments = segments or 0\n",
            ),
        ),
    ),
    (
        "condemned-with-its-first-segment",
        "a file is condemned with its last segment, not with its first",
        (("lineage", "segments > 1 and USED or CONDEMNED", "CONDEMNED"),),
    ),
    (
        "never-condemned",
        "a file is condemned with its last segment",
        (("lineage", "segments > 1 and USED or CONDEMNED", "USED"),),
    ),
    (
        "used-file-condemned",
        "a sweep leaves alone what has a segment",
        (
            ("condemn", "if state == USED then return {'USED'} end\n", ""),
            ("condemn", "if segments > 0 then\n", "if false then\n"),
        ),
    ),
    (
        "place-left-behind",
        "what was set aside leaves its file when it is dropped",
        (("retain", "    displace(asides[n])\n", ""),),
    ),
    (
        "moved-and-kept-by-a-commit",
        "a commit that is sent again does not keep the key of what was moved",
        (
            (
                "publish",
                "  if not is_filed then keep(delta, ARGV[10]) end\n  -- A WAIT",
                "  keep(delta, ARGV[10])\n  -- A WAIT",
            ),
        ),
    ),
    (
        "moved-and-set-aside",
        "a key that leaves for a file is not kept when its segment is set aside",
        (
            (
                "lineage",
                "    if not file_of(ident) then redis.call(",
                "    if true then redis.call(",
            ),
        ),
    ),
    (
        "moved-and-stays",
        "the key of what was moved expires",
        (
            (
                "place",
                "    redis.call('PEXPIRE', PREFIX .. ':' .. ident, ttl_ms)\n",
                "",
            ),
        ),
    ),
    (
        "back-without-its-blocks",
        "a segment leaves its file only when Redis has all of its blocks",
        (
            (
                "unplace",
                "if blocks ~= tonumber(match(ARGV[2], '^%S+ %S+ %S+ (%S+)')) then",
                "if false then",
            ),
        ),
    ),
    (
        "back-and-expiring",
        "the key of what came back does not expire",
        (("unplace", "if is_named then keep(KEYS[3], '0') else", "if is_named then else"),),
    ),
    (
        "back-and-still-counted",
        "a segment that comes back leaves its file",
        (("unplace", "displace(ident)\n", "redis.call('HDEL', META, 'a:' .. ident)\n"),),
    ),
    (
        "counted-twice",
        "a place that is entered again is counted once",
        (("place", "  if not before then\n", "  if true then\n"),),
    ),
    (
        "room-not-asked-for",
        "no block takes a partition above its share",
        (("stage", "  if refused then return refused end\n", ""),),
    ),
    (
        "staged-uncounted",
        "staged blocks count",
        (("stage", "string.format('s %d', loose_bytes(ident) + more)", "'s 0'"),),
    ),
    (
        "dropped-uncounted",
        "a dropped segment counts until it is gone",
        (
            (
                "lineage",
                "    redis.call('HSET', META, 'h:' .. ident, 'd ' .. match(entry, "
                "'^%S+ %S+ %S+ (%d+ %d+)'))\n",
                "",
            ),
        ),
    ),
    (
        "aside-uncounted",
        "what was set aside counts",
        (("room", "    elseif kind == 'z:' then\n", "    elseif kind == 'Z:' then\n"),),
    ),
    (
        "room-by-a-named-segment",
        "what a manifest names never gives way",
        (
            (
                "room",
                "    if named[one.ident] or left_ms == -2 then\n",
                "    if left_ms == -2 then\n",
            ),
            ("publish", "'z:' .. field, 'h:' .. field)", "'z:' .. field)"),
            ("room", "    if one.rank and left_ms >= 0 and", "    if one.rank and"),
        ),
    ),
    (
        "hot-run-over-nothing",
        "a hot run is read only together with the base that it stands on",
        (
            (
                "open",
                "  if not base then return false end\n",
                "  if not value then return false end\n",
            ),
            ("open", "  list(name, base)\n", "  if base then list(name, base) end\n"),
            ("hotrun", " or not alone_at(base_version, ARGV[5]) then", " then"),
        ),
    ),
    (
        "hot-run-and-its-deltas",
        "a hot run takes the place of its deltas, down to its base",
        (("open", "  list(name, base)\n  return true\n", "  return false\n"),),
    ),
    (
        "hot-run-without-its-blocks",
        "a hot run is entered once it has all of its blocks",
        (
            (
                "hotrun",
                "if blocks == 0 or blocks ~= tonumber(match(entry, '^%S+ %S+ %S+ (%d+)')) then",
                "if false then",
            ),
            (
                "hotrun",
                "redis.call('RENAME', KEYS[3], KEYS[2])",
                "redis.pcall('RENAME', KEYS[3], KEYS[2])",
            ),
        ),
    ),
    (
        "hot-run-uncounted",
        "a hot run counts",
        (("room", "    elseif kind == 'r:' then\n", "    elseif kind == 'R:' then\n"),),
    ),
    (
        "hot-run-stays",
        "the key of a hot run expires when it is dropped",
        (("hot", "    if one.ident then expire_dropped(", "    if false then expire_dropped("),),
    ),
    (
        "hot-run-beside-another",
        "a partition has one hot run",
        (("hotrun", "drop_runs(before)\n", ""),),
    ),
    (
        "hot-run-and-expiring",
        "the key of a hot run does not expire",
        (("hotrun", "redis.call('PERSIST', KEYS[2])\n", ""),),
    ),
)
"""Texts of scripts: name, rule, edits."""

_write = moving._write
_place = moving.place
_merged = hot_run._merged
_add = SegmentWriter.add


def place_before_the_file(
    client: Client, id_: PartitionId, segments: Sequence[Segment], folder: Folder, name: str
) -> tuple[list[FilePlace], int]:
    """Enters the places, and writes the file then."""
    held: list[bytes] = []

    class Draft:
        def write_pieces(self, _name: str, pieces: Any) -> None:
            held.extend(pieces)

        def read_ranges(self, _name: str, spans: Any) -> list[bytes]:
            raw = b"".join(held)
            return [raw[at : at + length] for at, length in spans]

    places, size = _write(client, id_, segments, Draft(), name)  # type: ignore[arg-type]
    if places:
        _place(client, id_, segments[: len(places)], places, size)
    folder.write_pieces(name, held)
    return places, size


def unlink_before_the_place(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    places: Sequence[FilePlace],
    size: int,
) -> moving.Moved:
    """Removes the keys before the places are entered."""
    client.call("moving", [("DEL", keys.segment(id_, one.ident)) for one in segments])
    return _place(client, id_, segments, places, size)


def place_of_another(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    places: Sequence[FilePlace],
    size: int,
) -> moving.Moved:
    """Enters for each segment the place of its neighbour."""
    return _place(client, id_, segments, [*places[1:], places[0]], size)


def sweep_without_condemning(
    client: Client, id_: PartitionId, file: str, *, announced_ms: int
) -> bool:
    """Deletes what the listing shows and no manifest names."""
    rows = {row.file: row.state for row in moving.rows_of(client, id_)}
    if rows.get(file) != "u" and announced_ms:
        files_of(client).folder(client, id_).remove_file(file)
    return False


def name_without_nonce(folder: str, first: int, last: int) -> str:
    """Names a file by its versions alone."""
    return f"{folder}/{first}-{last}-{'0' * 32}.seg"


def without_removals(
    partition: Any, opened: Opened, writer: str, bytes_max: int
) -> tuple[dict[str, bytes], Entry] | None:
    """Merges changes without the rows that they remove."""

    def kept(segment: SegmentWriter, rows: Mapping[bytes, Value]) -> None:
        _add(segment, {key: value for key, value in rows.items() if value is not None})

    with mock.patch.object(SegmentWriter, "add", kept):
        return _merged(partition, opened, writer, bytes_max)


def without_the_oldest(
    partition: Any, opened: Opened, writer: str, bytes_max: int
) -> tuple[dict[str, bytes], Entry] | None:
    """Merges all deltas but the one above the base."""
    segments = opened.segments
    if len(segments) > 2:
        segments = (*segments[:-2], segments[-1])
    return _merged(partition, replace(opened, segments=segments), writer, bytes_max)


FILE_METHODS: tuple[tuple[str, str, Any, str, Any], ...] = (
    (
        "place-before-the-file-is-whole",
        "a place is entered once its file is whole",
        moving,
        "_write",
        place_before_the_file,
    ),
    (
        "unlinked-before-placed",
        "keys go with the place, in one step",
        moving,
        "place",
        unlink_before_the_place,
    ),
    (
        "place-word-of-another-segment",
        "each segment has its own region",
        moving,
        "place",
        place_of_another,
    ),
    (
        "tail-not-read-back",
        "the end of each region is read back before it is placed",
        moving,
        "is_whole",
        lambda *_: True,
    ),
    (
        "name-without-nonce",
        "no name is used twice",
        moving,
        "new_file_name",
        name_without_nonce,
    ),
    (
        "no-grace",
        "a condemned file stays for as long as a server may go back",
        files,
        "time_ms",
        lambda _: 1 << 60,
    ),
    (
        "sweep-without-condemning",
        "what a listing shows decides nothing",
        files,
        "condemn",
        sweep_without_condemning,
    ),
    (
        "hot-run-without-removals",
        "a hot run has the rows that were removed since its base, too",
        hot_run,
        "_merged",
        without_removals,
    ),
    (
        "hot-run-without-its-oldest-delta",
        "a hot run has all changes since its base",
        hot_run,
        "_merged",
        without_the_oldest,
    ),
    (
        "damaged-hot-run-is-an-error",
        "a version whose hot run is damaged is read from its deltas",
        loading,
        "leave_out",
        lambda *_, **__: None,
    ),
)
"""Steps in Python: name, rule, owner of the method, its name, what replaces it."""
