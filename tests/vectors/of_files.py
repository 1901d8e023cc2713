"""Vectors of segments in files: places, and whole small files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state import keys
from redis_state.format.bucketing import hashes_in
from redis_state.format.hash_filter import denies, make_filter
from redis_state.format.place import FilePlace
from redis_state.format.region import write_region
from redis_state.format.rows import stored_key
from redis_state.format.signature import BlockSigner
from redis_state.ids import PartitionId, StoreId
from redis_state.places.owners import owner_of
from tests.vectors import of_segments

GEN = "a" * 32
_NAME = "0-3-37a8eec1ce19687d/1-9-" + "5" * 32 + ".seg"
_SEGMENTS = ("first", "second", "parts", "snapshot", "prefix", "families", "timed in order")
_FILTERED = (1, 2, 25, 26, 300)
_EDGES = (0, (1 << 32) - 1, 1 << 31, (1 << 31) - 1, 1)
_SECRET = bytes(range(32))


def places() -> dict[str, Any]:
    """Places that a reader accepts, and those that it refuses."""
    file = FilePlace(_NAME, 900, 1200, 300)
    good: list[dict[str, Any]] = [
        {"text": "", "gen": "", "file": None},
        {"text": f"p {GEN}", "gen": GEN, "file": None},
        {
            "text": file.text,
            "gen": "",
            "file": {"name": _NAME, "offset": 900, "bytes": 1200, "head": 300},
        },
    ]
    refused = [
        "p",
        "p ",
        f"p {GEN} 1",
        f"p {GEN[1:]}",
        f"f {_NAME}",
        f"f {_NAME} 0 1200",
        f"f {_NAME} 0 1200 300 1",
        f"f {_NAME} 0 1200 1201",
        f"f {_NAME} 0 1200 7",
        f"f {_NAME} -1 1200 300",
        f"f {_NAME} 01 1200 300",
        f"f {_NAME} 0 {(1 << 40) + 1} 300",
        f"f ../{_NAME} 0 1200 300",
        f"f {_NAME}x 0 1200 300",
        f"f {_NAME.replace('/', '/../')} 0 1200 300",
        f"b {_NAME} 0 1200 300",
        f"q {GEN}",
    ]
    return {
        "about": "Places of docs/format.md, sections 14 and 17, by the manifest's text.",
        "good": good,
        "refused": refused,
    }


def files() -> dict[str, Any]:
    """Whole files, each with all segments of one version's vectors, and what is in them."""
    plans = of_segments.plans()
    planned = [plans[name] for name in _SEGMENTS]
    many = {stored_key(0, b"\0key-%d" % n): b"\0%d" % n for n in range(150)}
    planned.append(of_segments.plan(9, [many], live=150, buckets=256))
    further = [
        {
            stored_key(0, b"\0part-%d-%d" % (part, n)): None if n % 5 == 0 else b"\0v"
            for n in range(8)
        }
        for part in range(3)
    ]
    planned.append(of_segments.plan(10, further, live=170, buckets=2))
    return {
        "about": "Files of docs/format.md, section 17. `values`: what Redis holds in each field, "
        "and what a reader of the region at `place` MUST find. Blocks are not compressed.",
        "secret": _SECRET.hex(),
        "cases": [
            _file("plain", planned, None),
            _file("signed", planned, BlockSigner(_SECRET)),
            _file("without filters", planned, None, filters=False),
        ],
    }


def filters() -> dict[str, Any]:
    """Filters, hashes of rows whose kind is not known, and directory blocks with filters."""
    dice = random.Random(7)
    cases: list[dict[str, Any]] = []
    for count in _FILTERED:
        hashes = [*_EDGES, *(dice.getrandbits(32) for _ in range(count))][:count]
        made = make_filter(hashes)
        others = [dice.getrandbits(32) for _ in range(200)]
        assert made is not None
        denied = [one for one in others if denies(made, one)]
        cases.append({"hashes": hashes, "filter": made.hex(), "denied": denied})
    keys_ = [
        stored_key(0, b""),
        stored_key(1, b"\x01\0\0\0a"),
        stored_key(1, b"\x02\0\0\0ab" + bytes(8)),
        stored_key(2, bytes(8)),
        stored_key(65535, b"\xff\xff\xff\xff, and so on"),
    ]
    rows = [
        {"key": key.hex(), "bucket": bucket, "buckets": buckets, "hashes": sorted(hashes)}
        for key in keys_
        for buckets in (1, 4)
        for bucket in range(buckets)
        for hashes in [hashes_in(key, bucket=bucket, buckets=buckets)]
    ]
    good: dict[str, Any] = {"o": 8, "l": b"\x05\x00\x07"}
    odd: list[object] = [b"", bytes(31), bytes(33), "a" * 32, 32, None]
    return {
        "about": "Filters of docs/format.md, section 17. `rows`: the hashes that a writer adds for "
        "a key whose kind it does not know. `directories`: payloads of directory blocks, `refused` "
        "those that a reader MUST refuse.",
        "cases": cases,
        "rows": rows,
        "directories": {
            "good": _directory(good | {"b": make_filter([1])}),
            "refused": [_directory(good | {"b": one}) for one in odd],
        },
    }


def _directory(of: dict[str, Any]) -> str:
    packed: bytes = msgpack.packb(of, use_bin_type=True)
    return packed.hex()


def _file(
    name: str,
    planned: Sequence[of_segments.Planned],
    signer: BlockSigner | None,
    *,
    filters: bool = True,
) -> dict[str, Any]:
    id_ = PartitionId(StoreId(GEN, 0, "default"), 3)
    raw, regions = bytearray(), []
    for one in planned:
        segment = one.segment
        key = keys.segment(id_, segment.ident)
        owner = owner_of(id_, segment)
        values = {
            field: value if signer is None else signer.signed(key, field, value)
            for field, value in one.fields.items()
        }
        pieces = list(write_region(owner, values, signer=signer, compress=False, filters=filters))
        size = sum(map(len, pieces))
        place = FilePlace(_NAME, len(raw), size, len(pieces[-1]))
        raw += b"".join(pieces)
        regions.append(
            {
                "key": key,
                "ident": segment.ident,
                "field": segment.field,
                "entry": segment.entry.text,
                "place": place.text,
                "values": {field: value.hex() for field, value in values.items()},
            }
        )
    return {
        "name": name,
        "gen": GEN,
        "operator": 0,
        "partition": 3,
        "store": "default",
        "signed": signer is not None,
        "filters": filters,
        "hex": bytes(raw).hex(),
        "regions": regions,
    }
