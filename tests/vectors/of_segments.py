"""Vectors of whole segments and of the versions that they make up."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.format import expiry
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import Appended, Value, stored_key
from redis_state.format.segment import SegmentWriter
from tests.vectors.of_pieces import family, family_json, header_json, row_json

PLAIN = (family(),)
PREFIX = (family(kind="prefix", params=(1,)),)
MANY = (
    family(),
    family(1, "p", "prefix", params=(1,)),
    family(2, "list", multi_value=True),
    family(3, "r", "range", params=(0,)),
    family(4, "$timers", "ts-postfix", internal=True),
)
TIMED = (family(ttl=True), family(1, "p", "prefix", params=(1,)))
TIMED_ORDERED = (family(kind="range", params=(0,), ttl=True),)
TIME_S = 1_764_265_440
DEFAULT_ONLY = [*MANY[:1], family(5, "later")]


@dataclass(frozen=True)
class Planned:
    """A segment, and what has to be read from it."""

    segment: Segment
    fields: Mapping[str, bytes]
    rows: Mapping[bytes, Value]
    families: tuple[Family, ...]
    with_families: bool
    tombstones: tuple[Tombstone, ...]

    @property
    def features(self) -> list[str]:
        """Features that a release may lack; such a release must refuse the segment."""
        lists = any(isinstance(value, Appended) for value in self.rows.values())
        ranges = any(t.start is not None or t.end is not None for t in self.tombstones)
        table = self.families if self.with_families else ()
        found = {
            "ordered": any("/" in name for name in self.fields) or any(f.ordered for f in table),
            "multi-value": lists or any(f.multi_value for f in table),
            "range-tombstone": ranges,
            "ts-postfix": any(f.kind == "ts-postfix" for f in table),
            "ttl": bool(self.segment.entry.time),
        }
        return [name for name, there in found.items() if there]


def _key(number: int | str, id_: int = 0) -> bytes:
    return stored_key(id_, b"\0key-%s" % str(number).encode())


def _prefix_key(prefix: bytes, rest: bytes, id_: int = 0) -> bytes:
    return stored_key(id_, struct.pack("<i", len(prefix)) + prefix + rest)


def _uid(version: int) -> str:
    return f"{version:032x}"


def plan(
    version: int,
    parts: Sequence[Mapping[bytes, Value]],
    *,
    families: tuple[Family, ...] = PLAIN,
    live: int,
    snapshot: bool = False,
    parent: str | None = None,
    with_families: bool = False,
    tombstones: tuple[Tombstone, ...] = (),
    buckets: int | None = 1,
    complete: bool = False,
    time: int = 0,
) -> Planned:
    uid = _uid(version)
    writer_name = "f" * 32
    ident = f"s:{version}:{writer_name}" if snapshot else f"d:{version}:{uid}"
    writer = SegmentWriter(ident, families, buckets=buckets, compress=False)
    rows: dict[bytes, Value] = {}
    for part in parts:
        writer.add(part)
        rows.update(part)
    ref = writer_name if snapshot else parent or ("-" if version == 1 else _uid(version - 1))
    entry = writer.finish(
        ref=ref,
        live=live,
        complete=complete,
        with_families=with_families,
        tombstones=tombstones,
        time=time,
    )
    segment = Segment(snapshot, version, uid, entry)
    return Planned(segment, writer.fields, rows, families, with_families, tombstones)


def _ordered(number: int) -> bytes:
    return stored_key(3, struct.pack(">q", number) + b"row")


def plans() -> dict[str, Planned]:
    list_value = b"\xc4\x01a\xc4\x01b"
    timer = stored_key(4, b"\0who" + struct.pack(">Q", 7))
    return _timed_plans() | {
        "first": plan(
            1, [{_key(i): b"\0v%d" % i for i in range(40)}], live=40, buckets=4, with_families=True
        ),
        "second": plan(2, [{_key(3): b"\0new", _key(5): None, _key(99): b"\0added"}], live=40),
        "nothing changed": plan(3, [], live=40),
        "removes what is not there": plan(4, [{_key("none"): None, _key(6): b""}], live=40),
        "parts": plan(
            5,
            [{_key(7): b"\0part 0", _key(8): b"\0part 0"}, {_key(7): b"\0part 1"}, {_key(8): None}],
            live=39,
        ),
        "snapshot": plan(
            5,
            [{_key(i): b"\0s%d" % i for i in range(300)}],
            live=300,
            buckets=8,
            snapshot=True,
            with_families=True,
        ),
        "complete": plan(6, [{_key("c"): b"\0c"}], live=1, complete=True, with_families=True),
        "emptied": plan(7, [{_key("after"): b"\0kept"}], live=1, tombstones=(Tombstone(0),)),
        "empty snapshot": plan(8, [], live=0, snapshot=True, with_families=True),
        "prefix": plan(
            1,
            [
                {
                    _prefix_key(b"\0user-%d" % (i % 5), b"\0session-%d" % i): b"\0v%d" % i
                    for i in range(20)
                }
            ],
            live=20,
            families=PREFIX,
            buckets=8,
            with_families=True,
        ),
        "families": plan(
            1,
            [
                {
                    _key("a"): b"\0a",
                    _prefix_key(b"\0u", b"\0s", 1): b"\0p",
                    _key("l", 2): list_value,
                    timer: b"\0t",
                    **{_ordered(i): b"\0%d" % i for i in range(300)},
                }
            ],
            families=MANY,
            live=304,
            buckets=2,
            with_families=True,
        ),
        "appends": plan(
            2,
            [
                {
                    _key("l", 2): Appended(b"\xc4\x01c"),
                    _key("m", 2): Appended(b"\xc4\x01x"),
                    timer: None,
                    _ordered(1000): b"\0last",
                }
            ],
            families=MANY,
            live=305,
            buckets=2,
        ),
        "ranges": plan(
            3,
            [{_ordered(150): b"\0back"}],
            families=MANY,
            live=155,
            tombstones=(
                Tombstone(3, struct.pack(">q", 100), struct.pack(">q", 200)),
                Tombstone(3, struct.pack(">q", 250), None),
            ),
        ),
        "a family is removed": plan(
            4,
            [{_key("new", 5): b"\0n"}],
            families=tuple(DEFAULT_ONLY),
            live=2,
            with_families=True,
            tombstones=tuple(Tombstone(i) for i in (1, 2, 3, 4)),
        ),
    }


def _timed_plans() -> dict[str, Planned]:
    """Versions with a time to live. Rows expire at the versions' times, before and after them."""
    later, never = TIME_S + 1, expiry.NEVER
    first: dict[bytes, Value] = {
        _key(n): expiry.stamped(b"\0v%d" % n, TIME_S + 10 * n) for n in range(20)
    }
    first[_key("ever")] = expiry.stamped(b"\0ever", never)
    first[_key("empty")] = expiry.stamped(b"", TIME_S + 60)
    first[_prefix_key(b"\0u", b"\0s", 1)] = b"\0without"
    again: dict[bytes, Value] = {
        _key(3): expiry.stamped(b"\0again", TIME_S + 1030),
        _key(4): None,
        _key("new"): expiry.stamped(b"\0new", TIME_S + 1030),
    }
    kept = {key: first[key] for key in [*map(_key, range(12, 20)), _key("ever")]}
    ordered: dict[bytes, Value] = {
        stored_key(0, b"\0o%03d" % n): expiry.stamped(b"\0%d" % n, later + n % 3)
        for n in range(300)
    }
    return {
        "timed": plan(
            1, [first], families=TIMED, live=23, buckets=2, with_families=True, time=TIME_S
        ),
        # Three rows are expired here; one of them is put again, and another one removed.
        "timed again": plan(2, [again], families=TIMED, live=24, buckets=2, time=TIME_S + 30),
        "timed and unchanged": plan(3, [], families=TIMED, live=24, time=TIME_S + 110),
        "timed snapshot": plan(
            3,
            [
                {**kept, _key(3): again[_key(3)], _key("new"): again[_key("new")]},
                {_prefix_key(b"\0u", b"\0s", 1): b"\0without"},
            ],
            families=TIMED,
            live=12,
            snapshot=True,
            with_families=True,
            time=TIME_S + 110,
        ),
        "time to live is turned off": plan(
            4, [{_key(19): b"\0v19"}], live=1, complete=True, with_families=True
        ),
        "timed in order": plan(
            1,
            [ordered],
            families=TIMED_ORDERED,
            live=300,
            with_families=True,
            complete=True,
            time=later,
        ),
    }


def _json(name: str, one: Planned) -> dict[str, Any]:
    table = one.families if one.with_families else None
    head = Header(table, tombstones=one.tombstones)
    shown = header_json(head)
    return {
        "name": name,
        "features": one.features,
        "field": one.segment.field,
        "entry": one.segment.entry.text,
        "ident": one.segment.ident,
        "fields": {field: block.hex() for field, block in one.fields.items()},
        "hasHeader": one.segment.entry.header,
        "families": shown["families"],
        "tombstones": shown["tombstones"],
        "rows": [row_json(key, value) for key, value in sorted(one.rows.items())],
    }


def _damaged() -> list[dict[str, Any]]:
    all_ = plans()
    first, snapshot = _json("", all_["first"]), _json("", all_["snapshot"])
    timed = _json("", all_["timed"])
    untimed = timed["entry"].replace(f" {TIME_S} ht", " h")
    words = first["entry"].split(" ")

    def entry(**changes: str) -> str:
        places = {"blocks": 3, "bytes": 4, "buckets": 5, "checksum": 6, "flags": 7, "rows": 1}
        changed = list(words)
        for name, value in changes.items():
            changed[places[name]] = value
        return " ".join(changed)

    lost = {name: block for name, block in first["fields"].items() if name != "2"}
    swapped = dict(first["fields"])
    swapped["1"], swapped["2"] = swapped["2"], swapped["1"]
    cases = [
        ("a block is missing", first["field"], first["entry"], lost),
        ("two blocks are swapped", first["field"], first["entry"], swapped),
        ("another checksum", first["field"], entry(checksum="1"), first["fields"]),
        ("another number of blocks", first["field"], entry(blocks="9"), first["fields"]),
        ("the header is not named", first["field"], entry(flags="-"), first["fields"]),
        ("of another version", "d:2:" + _uid(1), first["entry"], first["fields"]),
        ("of another attempt", "d:1:" + _uid(2), first["entry"], first["fields"]),
        (
            "a time without a family that needs it",
            first["field"],
            " ".join([*words[:-1], "9 ht"]),
            first["fields"],
        ),
        ("a time to live without a time", timed["field"], untimed, timed["fields"]),
        ("an unknown flag", first["field"], entry(flags="hx"), first["fields"]),
        ("a snapshot as a delta", "d:5:" + _uid(5), snapshot["entry"], snapshot["fields"]),
    ]
    return [
        {"name": name, "field": field, "entry": text, "fields": fields, "error": "FORMAT"}
        for name, field, text, fields in cases
    ]


def _timed_versions() -> list[tuple[str, list[str], Mapping[bytes, bytes], Sequence[Family]]]:
    """Versions with a time to live: the values of the rows that a reader sees, without expiries."""
    ever = {_key("ever"): b"\0ever", _prefix_key(b"\0u", b"\0s", 1): b"\0without"}
    first = {_key(n): b"\0v%d" % n for n in range(1, 20)} | {_key("empty"): b""} | ever
    second = {key: value for key, value in first.items() if key not in map(_key, (1, 2, 3, 4))}
    second |= {_key(3): b"\0again", _key("new"): b"\0new"}
    gone = [_key("empty"), *map(_key, range(5, 12))]
    third = {key: value for key, value in second.items() if key not in gone}
    in_order = {stored_key(0, b"\0o%03d" % n): b"\0%d" % n for n in range(300) if n % 3}
    return [
        ("timed", ["timed"], first, TIMED),
        ("timed again", ["timed", "timed again"], second, TIMED),
        ("later", ["timed", "timed again", "timed and unchanged"], third, TIMED),
        ("a timed snapshot", ["timed snapshot"], third, TIMED),
        ("time to live is turned off", ["time to live is turned off"], {_key(19): b"\0v19"}, PLAIN),
        ("timed in order", ["timed in order"], in_order, TIMED_ORDERED),
    ]


def segments() -> Any:
    return {
        "good": [_json(name, one) for name, one in plans().items()],
        "bad": _damaged(),
    }


def versions() -> Any:
    """Versions by what they should hold, worked out here by plain dicts and not by the reader."""
    base = {_key(i): b"\0v%d" % i for i in range(40)}
    second = {**base, _key(3): b"\0new", _key(99): b"\0added"}
    del second[_key(5)]
    fourth = {**second, _key(6): b""}
    fifth = {key: value for key, value in fourth.items() if key != _key(8)}
    fifth[_key(7)] = b"\0part 1"
    snapshot = {_key(i): b"\0s%d" % i for i in range(300)}
    timer = stored_key(4, b"\0who" + struct.pack(">Q", 7))
    many = {
        _key("a"): b"\0a",
        _prefix_key(b"\0u", b"\0s", 1): b"\0p",
        _key("l", 2): b"\xc4\x01a\xc4\x01b",
        timer: b"\0t",
        **{_ordered(i): b"\0%d" % i for i in range(300)},
    }
    appended = {key: value for key, value in many.items() if key != timer}
    appended |= {
        _key("l", 2): b"\xc4\x01a\xc4\x01b\xc4\x01c",
        _key("m", 2): b"\xc4\x01x",
        _ordered(1000): b"\0last",
    }
    ranged = {
        key: value
        for key, value in appended.items()
        if key not in {_ordered(i) for i in (*range(100, 200), *range(250, 300), 1000)}
    } | {_ordered(150): b"\0back"}
    final = {_key("a"): b"\0a", _key("new", 5): b"\0n"}
    cases: list[tuple[str, list[str], Mapping[bytes, bytes], Sequence[Family]]] = [
        ("one delta", ["first"], base, PLAIN),
        (
            "deltas",
            ["first", "second", "nothing changed", "removes what is not there"],
            fourth,
            PLAIN,
        ),
        (
            "parts",
            ["first", "second", "nothing changed", "removes what is not there", "parts"],
            fifth,
            PLAIN,
        ),
        ("a snapshot", ["snapshot"], snapshot, PLAIN),
        ("a complete delta", ["complete"], {_key("c"): b"\0c"}, PLAIN),
        ("emptied", ["complete", "emptied"], {_key("after"): b"\0kept"}, PLAIN),
        ("an empty snapshot", ["empty snapshot"], {}, PLAIN),
        (
            "prefix keys",
            ["prefix"],
            {
                _prefix_key(b"\0user-%d" % (i % 5), b"\0session-%d" % i): b"\0v%d" % i
                for i in range(20)
            },
            PREFIX,
        ),
        ("families", ["families"], many, MANY),
        ("appends", ["families", "appends"], appended, MANY),
        ("ranges", ["families", "appends", "ranges"], ranged, MANY),
        (
            "a family is removed",
            ["families", "appends", "ranges", "a family is removed"],
            final,
            DEFAULT_ONLY,
        ),
    ]
    cases += _timed_versions()
    all_ = plans()
    return [
        {
            "name": name,
            "features": sorted({f for part in parts for f in all_[part].features}),
            "segments": parts,
            "families": [family_json(one) for one in table],
            "rows": [[key.hex(), value.hex()] for key, value in sorted(rows.items())],
        }
        for name, parts, rows, table in cases
    ]
