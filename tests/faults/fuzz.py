"""Hostile bytes for every decoder, bent from good ones, with a check that fits."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from random import Random
from typing import Any

from redis_state.codec import MSGPACK
from redis_state.codec.state_object import StateObject
from redis_state.errors import FormatError, UnreadableError
from redis_state.format import block, header, ordered, rows, segment
from redis_state.format.entry import parse_segment
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES
from redis_state.format.segment import checksum
from redis_state.rows.codec import FamilyCodec, codec_of
from redis_state.rows.unsafe_row import decode as decode_unsafe_row
from redis_state.types.schema import parse_schema
from tests.unit.format.vectors import load

MEASURED_EVERY = 50
"""One input in so many is decoded under a memory meter."""

_ALLOWED_FACTOR = 100
_ALLOWED_BYTES = 4 << 20
_WORD = 8
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xC6, 0xC9, 0xDD, 0xDF, 0xFF)
_NUMBERS = (0, 1, 7, 8, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFF8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A decoder and bytes that it reads."""

    name: str
    decode: Decode
    good: tuple[bytes, ...]


class Finding(Exception):  # noqa: N818  # what the fuzzer looks for, not what went wrong with it
    """A decoder did something else than to read or to refuse."""


def targets() -> list[Target]:
    """Every decoder of bytes that come from Redis."""
    payloads = [bytes.fromhex(case["payload"]) for case in load("rows.json")["good"]]
    headers = [bytes.fromhex(case["payload"]) for case in load("headers.json")["good"]]
    blocks = [bytes.fromhex(case["block"]) for case in load("blocks.json")["good"]]
    texts = [f"{case['field']}\n{case['entry']}".encode() for case in load("segments.json")["good"]]
    values = [MSGPACK.encode_value(value) for value in _OBJECTS]
    keys = [MSGPACK.encode_key(key) for key in _KEYS]
    objects = StateObject(dict)
    found = [
        Target(
            "rows",
            _sealed("0", lambda raw: rows.decode(block.decode(_AT, "0", raw))),
            tuple(payloads),
        ),
        Target(
            "header",
            _sealed("h", lambda raw: header.decode(block.decode(_AT, "h", raw))),
            tuple(headers),
        ),
        Target("block", lambda raw: block.decode(_AT, "0", raw), tuple(blocks)),
        Target("entry", _entry, tuple(texts)),
        Target("list", rows.split_elements, (rows.join_elements([b"a", b"bc" * 40]),)),
        Target("object", MSGPACK.decode_value, tuple(values)),
        Target("key", MSGPACK.decode_key, tuple(keys)),
        Target("state object", objects.decode, tuple(map(objects.encode, _STATES))),
    ]
    found += list(_segments())
    for case in load("unsafe_row.json")["vectors"]:
        schema = parse_schema(case["schema"])
        found.append(_unsafe_row(case["name"], schema, bytes.fromhex(case["row"])))
    return [*found, *_families()]


_AT = "d:1:u"
_OBJECTS: tuple[Any, ...] = (None, 1, -1, "text", b"bytes", [1, [2, {"a": None}]], {"k": [1.5] * 9})
_KEYS: tuple[Any, ...] = (0, -5, 1 << 40, "k\0", b"\xff", ("a", 1), ("a", (b"x", -1)), True, 1.5)
_STATES: tuple[dict[str, Any], ...] = ({}, {"n": 1, "names": ["a", "b"]})


def _sealed(field: str, decode: Decode) -> Decode:
    """The payload in a block whose check is right."""

    def sealed(payload: bytes) -> object:
        raw = block.seal(_AT, field, payload, codec=block.CODEC_NONE, raw_length=len(payload))
        return decode(raw)

    return sealed


def _entry(raw: bytes) -> object:
    field, _, entry = raw.decode("latin-1").partition("\n")
    return parse_segment(field, entry)


def _segments() -> Iterator[Target]:
    """Whole segments of which one payload is bent; check, checksum and entry fit again."""
    for case in load("segments.json")["good"]:
        whole = parse_segment(case["field"], case["entry"])
        fields = {name: bytes.fromhex(text) for name, text in case["fields"].items()}
        for name, raw in fields.items():
            yield Target(
                f"field {name} of a segment",
                _bent_segment(whole, fields, name),
                (block.decode(whole.ident, name, raw),),
            )


def _bent_segment(whole: Any, fields: dict[str, bytes], name: str) -> Decode:
    def read(payload: bytes) -> object:
        raw = block.seal(
            whole.ident, name, payload, codec=block.CODEC_NONE, raw_length=len(payload)
        )
        bent = fields | {name: raw}
        words = whole.entry.text.split(" ")
        words[4], words[6] = str(sum(map(len, bent.values()))), str(checksum(bent))
        again = parse_segment(
            f"{'s' if whole.snapshot else 'd'}:{whole.version}:{whole.uid}", " ".join(words)
        )
        found = segment.read_segment(again, bent)
        index = ordered.read_index(again, segment.read_header(again, bent.get("h")))
        for number, block_name in enumerate(index.names()):
            if block_name in bent:
                ordered.read_block(again, index, number, bent[block_name], lists=False)
        return found

    return read


def _decode_key(codec: FamilyCodec, raw: bytes) -> object:
    return codec.decode_key(b"\0\1" + raw)


def _families() -> Iterator[Target]:
    """Keys and values of column families, in both encodings."""
    columns = {"type": "struct", "fields": [{"name": n, "type": t} for n, t in _COLUMNS.items()]}
    avro = {"type": "redis-state.avro", "schema": columns, "written": [[0, columns]]}
    values = tuple(range(len(_COLUMNS)))
    for schema in (json.dumps(columns), json.dumps(avro)):
        for kind, params in (("none", ()), ("prefix", (2,)), ("range", (0,)), ("ts-prefix", ())):
            codec = codec_of(Family(1, "some", kind, params, schema, schema))
            key = codec.encode_key(_ROW)[FAMILY_BYTES:]
            yield Target(f"{kind} key", partial(_decode_key, codec), (key,))
        value = codec.values.encode(values, _ROW)
        yield Target("value of a family", codec.decode_value, (value,))
        yield Target("list of a family", codec.decode_values, (rows.join_elements([value, value]),))


_COLUMNS: dict[str, Any] = {
    "n": "long",
    "text": "string",
    "price": "decimal(20,2)",
    "in": {"type": "struct", "fields": [{"name": "a", "type": "date"}]},
    "__event_time": "long",
}
_ROW = (5, "text", 3, (date(2024, 1, 1),), 1_704_105_000_000)


def _unsafe_row(name: str, schema: Any, good: bytes) -> Target:
    return Target(f"UnsafeRow: {name}", lambda raw: decode_unsafe_row(schema, raw), (good,))


def bend(random: Random, good: bytes, other: bytes) -> bytes:
    """Good bytes with one to four changes of the kinds that decoders get wrong."""
    data = bytearray(good)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1 if data:
                data[at % len(data)] = random.choice(_BYTES)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = bytes(random.choice(_BYTES) for _ in range(random.randint(1, 9)))
            case 4:
                del data[at : at + random.randint(1, 9)]
            case 5:
                data[at:at] = data[at : at + random.randint(1, 40)]
            case 6:
                start = random.randrange(len(other) + 1)
                data[at:at] = other[start : start + random.randint(1, 60)]
            case 7:
                number = random.choice((*_NUMBERS, len(data), len(data) - 1 & 0xFFFFFFFF))
                data[at : at + 4] = struct.pack(random.choice("<>") + "I", number)
            case 8:
                # Where an UnsafeRow says how long a value is and where it lies.
                at -= at % _WORD
                size, offset = (random.choice((*_NUMBERS, len(data))) for _ in range(2))
                data[at : at + _WORD] = struct.pack("<II", size, offset)
    return bytes(data)


def run(seed: int, count: int) -> Counter[str]:
    """Decode so many bent inputs; how many each decoder read and refused.

    Raises:
        Finding: A decoder raised something else, or took far more memory than its input has bytes.
    """
    random = Random(seed)
    all_targets = targets()
    pool = [good for target in all_targets for good in target.good]
    found: Counter[str] = Counter()
    for number in range(count):
        target = random.choice(all_targets)
        raw = bend(random, random.choice(target.good), random.choice(pool))
        measured = number % MEASURED_EVERY == 0
        if measured:
            tracemalloc.start()
        try:
            target.decode(raw)
            found["read"] += 1
        except (FormatError, UnreadableError):
            found["refused"] += 1
        except Exception as error:
            raise Finding(f"{_where(seed, number, target, raw)}: {error!r}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1] if measured else 0
            tracemalloc.stop()
        if peak > _ALLOWED_FACTOR * len(raw) + _ALLOWED_BYTES:
            raise Finding(f"{_where(seed, number, target, raw)}: it took {peak} bytes")
    found["inputs"] = count
    return found


def _where(seed: int, number: int, target: Target, raw: bytes) -> str:
    return f"seed {seed}, input {number}, {target.name}, {raw.hex()}"


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])))
