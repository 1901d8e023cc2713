"""Vectors of the smallest pieces. What is expected is written by hand where that is possible."""

from __future__ import annotations

import hmac
import struct
import zlib
from typing import Any

from redis_state import keys
from redis_state.format import block, bucketing, header
from redis_state.format import rows as rows_format
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import Appended
from redis_state.ids import PartitionId, StoreId
from tests.vectors.of_hot_runs import hot_runs

GEN = "0123456789abcdef0123456789abcdef"
UID = "9f000000000000000000000000000001"
IDENT = f"d:12:{UID}"

# 300 bytes of "a", as zstd 1.5 compresses them at level 1.
_ZSTD_RAW = b"a" * 300
_ZSTD_FRAME = bytes.fromhex("28b52ffd602c004d00001061610100272ac002")

# A family without columns, up to its eighth part.
_OPEN_FAMILY = b"\x00\xa1a\xa4none\x90\xa0\xa0\xc2\xc2"

KEY_SCHEMA = (
    '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
)
VALUE_SCHEMA = (
    '{"type":"struct","fields":[{"name":"count","type":"long","nullable":true,"metadata":{}}]}'
)


def family(id_: int = 0, name: str = "default", kind: str = "none", **more: Any) -> Family:
    params = more.pop("params", ())
    return Family(id_, name, kind, params, KEY_SCHEMA, VALUE_SCHEMA, **more)


def family_json(one: Family) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "kind": one.kind,
        "params": list(one.params),
        "keySchema": one.key_schema,
        "valueSchema": one.value_schema,
        "multiValue": one.multi_value,
        "internal": one.internal,
        **({"ttl": True} if one.ttl else {}),
    }


def _check(field: str, head: bytes, stored: bytes) -> int:
    return zlib.crc32(b"%s\0%s\0" % (IDENT.encode(), field.encode()) + head + stored)


def _block(field: str, codec: int, raw_length: int, stored: bytes) -> bytes:
    """A block by the letter of the format, whatever it is worth."""
    head = struct.pack(">BI", codec, raw_length)
    return b"\xb7" + head + struct.pack(">I", _check(field, head, stored)) + stored


def signatures() -> Any:
    secret, key, field = bytes(range(32)), "{rs:1:0:3}:d:1:ab", "0.1"
    whole = _block(field, 0, 2, b"\x91\xc0")
    tag = hmac.digest(secret, f"{key}\0{field}\0".encode() + whole, "sha256")[:16]
    value = b"\xb8" + tag + whole
    bad = [
        ("no bytes", key, field, b""),
        ("not signed", key, field, whole),
        ("cut off in the signature", key, field, value[:12]),
        ("another signature", key, field, b"\xb8" + bytes(16) + whole),
        ("a flipped bit in the block", key, field, value[:-1] + bytes([value[-1] ^ 1])),
        ("of another field", key, "0.2", value),
        ("of another segment", key + "c", field, value),
    ]
    return {
        "secret": secret.hex(),
        "key": key,
        "field": field,
        "block": whole.hex(),
        "value": value.hex(),
        "bad": [
            {"name": name, "key": at, "field": of, "value": data.hex(), "error": "FORMAT"}
            for name, at, of, data in bad
        ],
    }


def blocks() -> Any:
    good = [
        ("empty array", "0", b"\x90", 0, b"\x90"),
        ("incompressible", "7.1", bytes(range(256)), 0, bytes(range(256))),
        ("zstd", "h", _ZSTD_RAW, 1, _ZSTD_FRAME),
        ("compressible but kept", "0/3", b"a" * 64, 0, b"a" * 64),
    ]
    whole = _block("0", 0, 2, b"\x91\xc0")
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    bad = [
        ("no bytes", "0", b""),
        ("shorter than its header", "0", whole[:9]),
        ("another magic", "0", b"\xb6" + whole[1:]),
        ("a flipped bit in the payload", "0", bytes(flipped)),
        ("a flipped bit in the check", "0", whole[:9] + bytes([whole[9] ^ 1]) + whole[10:]),
        ("cut off", "0", whole[:-1]),
        ("moved to another field", "1", whole),
        ("unknown codec", "0", _block("0", 2, 2, b"\x91\xc0")),
        ("raw length too small", "0", _block("0", 0, 1, b"\x91\xc0")),
        ("raw length too large", "0", _block("0", 0, 3, b"\x91\xc0")),
        ("raw length above the limit", "0", _block("0", 0, (80 << 20) + 1, b"\x91\xc0")),
        ("raw length negative as a signed number", "0", _block("0", 1, 0xFFFFFFFF, _ZSTD_FRAME)),
        ("zstd of another raw length", "0", _block("0", 1, 299, _ZSTD_FRAME)),
        ("zstd of fewer bytes than stated", "0", _block("0", 1, 301, _ZSTD_FRAME)),
        ("zstd cut off", "0", _block("0", 1, 300, _ZSTD_FRAME[:-3])),
        ("no zstd at all", "0", _block("0", 1, 300, b"\x00" * 20)),
    ]
    return {
        "ident": IDENT,
        "good": [
            {
                "name": name,
                "field": field,
                "codec": codec,
                "payload": payload.hex(),
                "block": _block(field, codec, len(payload), stored).hex(),
            }
            for name, field, payload, codec, stored in good
        ],
        "bad": [
            {"name": name, "field": field, "block": data.hex(), "error": "FORMAT"}
            for name, field, data in bad
        ],
    }


def row_json(key: bytes, value: rows_format.Value) -> list[str]:
    if isinstance(value, Appended):
        return [key.hex(), "append", value.data.hex()]
    return [key.hex(), "remove", ""] if value is None else [key.hex(), "put", value.hex()]


def rows() -> Any:
    long_key, long_value = b"\0\0" + b"k" * 254, b"v" * 300
    good: list[tuple[str, list[rows_format.KeyedValue], bytes]] = [
        ("no rows", [], b"\x90"),
        ("put", [(b"\0\0k", b"v")], b"\x92\xc4\x03\0\0k\xc4\x01v"),
        ("an empty key and value", [(b"\0\0", b"")], b"\x92\xc4\x02\0\0\xc4\x00"),
        ("removed", [(b"\0\0k", None)], b"\x92\xc4\x03\0\0k\xc0"),
        (
            "bin 16",
            [(long_key, long_value)],
            b"\x92\xc5\x01\x00" + long_key + b"\xc5\x01\x2c" + long_value,
        ),
        (
            "order of unsigned bytes, a prefix first",
            [(b"\0\0a", b"1"), (b"\0\0a\0", b"2"), (b"\0\0\x7f", b"3"), (b"\0\0\x80", b"4")],
            b"\x98\xc4\x03\0\0a\xc4\x011\xc4\x04\0\0a\0\xc4\x012"
            b"\xc4\x03\0\0\x7f\xc4\x013\xc4\x03\0\0\x80\xc4\x014",
        ),
        (
            "array 16",
            [(b"\0\1" + bytes([i]), b"") for i in range(8)],
            b"\xdc\x00\x10" + b"".join(b"\xc4\x03\0\1%c\xc4\x00" % i for i in range(8)),
        ),
        (
            "appended",
            [(b"\0\2k", Appended(b"\xc4\x01x"))],
            b"\x92\xc4\x03\0\2k\xc7\x03\x01\xc4\x01x",
        ),
    ]
    bad = [
        ("nothing", b""),
        ("a map", b"\x80"),
        ("a key without a value", b"\x91\xc4\x03\0\0k"),
        ("a text as key", b"\x92\xa3\0\0k\xc4\x01v"),
        ("a number as value", b"\x92\xc4\x03\0\0k\x01"),
        ("a text as value", b"\x92\xc4\x03\0\0k\xa1v"),
        ("an unknown extension", b"\x92\xc4\x03\0\0k\xd4\x02v"),
        ("a key without a family", b"\x92\xc4\x01k\xc4\x01v"),
        ("a key twice", b"\x94\xc4\x02\0\0\xc0\xc4\x02\0\0\xc0"),
        ("descending keys", b"\x94\xc4\x02\0\1\xc0\xc4\x02\0\0\xc0"),
        ("bytes behind the end", b"\x90\x90"),
        ("fewer rows than claimed", b"\x94\xc4\x02\0\0\xc0"),
        ("more rows claimed than bytes", b"\xdd\x7f\xff\xff\xfe\xc4\x02\0\0\xc0"),
        ("a value longer than the bytes", b"\x92\xc4\x02\0\0\xc6\x7f\xff\xff\xff"),
        ("an array as value", b"\x92\xc4\x02\0\0\xdd\x7f\xff\xff\xff"),
    ]
    return {
        "good": [
            {
                "name": name,
                "payload": payload.hex(),
                "features": ["multi-value"] if name == "appended" else [],
                "rows": [row_json(key, value) for key, value in content],
            }
            for name, content, payload in good
        ],
        "bad": [
            {"name": name, "payload": payload.hex(), "error": "FORMAT"} for name, payload in bad
        ],
    }


def entries() -> Any:
    names = ["ref", "rows", "live", "blocks", "bytes", "buckets", "checksum", "complete", "header"]
    names += ["internal"]  # 0 where the text has no such word
    good: list[tuple[str, tuple[Any, ...]]] = [
        (f"{UID} 3 10 2 512 4 4294967295 -", (UID, 3, 10, 2, 512, 4, 4294967295, False, False, 0)),
        ("- 0 0 0 0 1 0 -", ("-", 0, 0, 0, 0, 1, 0, False, False, 0)),
        ("w.r_i-ter 1 1 2 90 1048576 7 h", ("w.r_i-ter", 1, 1, 2, 90, 1048576, 7, False, True, 0)),
        ("- 1 1 2 90 1 7 ch", ("-", 1, 1, 2, 90, 1, 7, True, True, 0)),
        ("u 9 7 2 90 1 7 3 h", ("u", 9, 7, 2, 90, 1, 7, False, True, 3)),
        ("u 9 7 2 90 1 7 7 -", ("u", 9, 7, 2, 90, 1, 7, False, False, 7)),
        ("u 1 1 1 9000000000 1 7 c", ("u", 1, 1, 1, 9000000000, 1, 7, True, False, 0)),
    ]
    timed: list[tuple[str, tuple[Any, ...]]] = [
        ("u 1 1 1 90 1 7 1764265440 t", ("u", 1, 1, 1, 90, 1, 7, False, False, 0, 1764265440)),
        ("- 1 1 2 90 1 7 4294967294 cht", ("-", 1, 1, 2, 90, 1, 7, True, True, 0, 4294967294)),
        ("u 9 7 2 90 1 7 3 1 ht", ("u", 9, 7, 2, 90, 1, 7, False, True, 3, 1)),
        ("u 1 1 1 90 1 7 1 1 ct", ("u", 1, 1, 1, 90, 1, 7, True, False, 1, 1)),
    ]
    bad = [
        "",
        "u 1 1 1 1 1 1",
        "u 1 1 1 1 1 1 t",
        "u 1 1 1 1 1 1 0 t",
        "u 1 1 1 1 1 1 01 t",
        "u 1 1 1 1 1 1 -1 t",
        "u 1 1 1 1 1 1 4294967295 t",
        "u 1 1 1 1 1 1 1 1764265440 -",
        "u 1 1 1 1 1 1 1764265440 h",
        "u 1 1 1 1 1 1 1764265440 0 t",
        "u 1 1 1 1 1 1 2 1764265440 t",
        "u 1 1 1 1 1 1 0 1764265440 t",
        "u 1 1 1 1 1 1 1 1 1764265440 t",
        "u 1 1 1 1 1 1 1764265440 th",
        "u 1 1 1 1 1 1 1764265440 tt",
        "u 1 1 1 1 1 1 1764265440 t -",
        "u 1 1 1 1 1 1 - -",
        "u 1 1 1 1 1 1 0 -",
        "u 1 1 1 1 1 1 2 -",
        "u 1 1 1 1 1 1 01 -",
        "u 1 1 1 1 1 1 1 1 -",
        "u  1 1 1 1 1 1 -",
        " u 1 1 1 1 1 1 -",
        "u 1 1 1 1 1 1 - ",
        "u -1 1 1 1 1 1 -",
        "u +1 1 1 1 1 1 -",
        "u 01 1 1 1 1 1 -",
        "u 1.0 1 1 1 1 1 -",
        "u 9223372036854775808 1 1 1 1 1 -",
        "u 1 1 1 1 0 1 -",
        "u 1 1 1 1 3 1 -",
        "u 1 1 1 1 2097152 1 -",
        "u 1 1 1 1 1 4294967296 -",
        "u 1 1 1 1 1 1 x",
        "u 1 1 1 1 1 1 hc",
        "u 1 1 1 1 1 1 cc",
        "u 1 1 1 1 1 1 -c",
        "u:1 1 1 1 1 1 1 -",
        "u 1 1 1 1 1 1\n -",
    ]
    return {
        "good": [
            *({"text": text, **dict(zip(names, values, strict=True))} for text, values in good),
            *(
                {"text": text, **dict(zip([*names, "time"], values, strict=True))}
                for text, values in timed
            ),
        ],
        "bad": [{"text": text, "error": "FORMAT"} for text in bad],
        "fields": {
            "good": [
                {"field": f"d:12:{UID}", "snapshot": False, "version": 12, "uid": UID},
                {
                    "field": "s:9007199254740993:u",
                    "snapshot": True,
                    "version": 9007199254740993,
                    "uid": "u",
                },
            ],
            "bad": ["", "m", "d:1", "d::u", "d:1:", "d:01:u", "d:-1:u", "x:1:u", "d:1:u:v"],
        },
        "hotRuns": hot_runs(),
    }


def header_json(one: Header) -> dict[str, Any]:
    return {
        "families": None if one.families is None else [family_json(f) for f in one.families],
        "ordered": {str(id_): [key.hex() for key in all_] for id_, all_ in one.ordered.items()},
        "parts": {str(bucket): count for bucket, count in one.parts.items()},
        "tombstones": [
            [
                t.family,
                None if t.start is None else t.start.hex(),
                None if t.end is None else t.end.hex(),
            ]
            for t in one.tombstones
        ],
        "highest": one.highest_id,
    }


def headers() -> Any:
    good = [
        ("one family", Header((family(),)), []),
        (
            "all kinds",
            Header(
                (
                    family(),
                    family(1, "p", "prefix", params=(2,)),
                    family(65535, "t", "ts-postfix", multi_value=True, internal=True),
                )
            ),
            ["multi-value"],
        ),
        (
            "a time to live",
            Header((family(ttl=True), family(1, "p", "prefix", params=(2,), ttl=True))),
            ["ttl"],
        ),
        (
            "one of the families has a time to live",
            Header((family(), family(1, "t", "ts-postfix", ttl=True), family(2, "o"))),
            ["ttl"],
        ),
        (
            "a time to live of ordered rows",
            Header((family(kind="range", params=(0,), ttl=True),), {0: (b"\0\0a",)}),
            ["ttl", "ordered"],
        ),
        ("a family is gone", Header((family(), family(4, "x")), highest_id=300), []),
        ("parts", Header(parts={0: 2, 7: 300}), []),
        ("a family is emptied", Header(tombstones=(Tombstone(3),)), []),
        (
            "ranges",
            Header(
                tombstones=(
                    Tombstone(0, b"a", b"b"),
                    Tombstone(0, None, b"c"),
                    Tombstone(1, b"", None),
                )
            ),
            ["range-tombstone"],
        ),
        (
            "everything",
            Header(
                (family(), family(2, "r", "range", params=(0, 1))),
                {2: (b"\0\2a", b"\0\2m")},
                {1: 2},
                (Tombstone(0),),
            ),
            ["ordered"],
        ),
    ]
    one_family = header.encode(Header((family(),)))
    bad = [
        ("nothing", b""),
        ("an array", b"\x90"),
        ("an unknown member", b"\x81\xa1x\x90"),
        ("a name that is no text", b"\x81\xc4\x01p\x90"),
        ("a family of seven parts", b"\x81\xa1f\x91\x97\x00\xa1a\xa4none\x90\xa0\xa0\xc2"),
        ("a time to live that is false", b"\x81\xa1f\x91\x99" + _OPEN_FAMILY + b"\xc2"),
        ("a time to live that is a number", b"\x81\xa1f\x91\x99" + _OPEN_FAMILY + b"\x01"),
        ("a time to live without its element", b"\x81\xa1f\x91\x99" + _OPEN_FAMILY),
        ("a family of ten parts", b"\x81\xa1f\x91\x9a" + _OPEN_FAMILY + b"\xc3\xc3"),
        *(
            (f"a time to live of {what}", header.encode(Header((one,))))
            for what, one in (
                ("times in order", family(kind="ts-prefix", ttl=True)),
                ("lists", family(multi_value=True, ttl=True)),
                ("an internal family", family(internal=True, ttl=True)),
            )
        ),
        ("an unknown kind", one_family.replace(b"\xa4none", b"\xa4nine")),
        (
            "a family id above 65535",
            b"\x81\xa1f\x91\x98\xce\x00\x01\x00\x00\xa1a\xa4none\x90\xa0\xa0\xc2\xc2",
        ),
        ("a highest id without a table", b"\x81\xa1i\x07"),
        ("a highest id of the table", b"\x82" + one_family[1:] + b"\xa1i\x00"),
        ("a highest id above 65535", b"\x82" + one_family[1:] + b"\xa1i\xce\x00\x01\x00\x00"),
        ("bytes behind the end", one_family + b"\xc0"),
        ("cut off", one_family[:-1]),
        ("a tombstone of two parts", b"\x81\xa1t\x91\x92\x00\xc0"),
        ("a bound that is a number", b"\x81\xa1t\x91\x93\x00\x01\xc0"),
        ("more families claimed than bytes", b"\x81\xa1f\xdd\x7f\xff\xff\xff"),
    ]
    return {
        "good": [
            {
                "name": name,
                "payload": header.encode(one).hex(),
                "features": features,
                "header": header_json(one),
            }
            for name, one, features in good
        ],
        "bad": [
            {"name": name, "payload": payload.hex(), "error": "FORMAT"} for name, payload in bad
        ],
    }


def buckets() -> Any:
    prefix = struct.pack("<i", 3) + b"abc"
    cases = [
        ("none", b"\0\0", b"\0\0"),
        ("none", b"\0\0key", b"\0\0key"),
        ("none", b"\1\2key", b"\1\2key"),
        ("prefix", b"\0\1" + prefix + b"rest", b"\0\1" + prefix),
        ("prefix", b"\0\1" + prefix, b"\0\1" + prefix),
        ("prefix", b"\0\1" + struct.pack("<i", 0), b"\0\1" + struct.pack("<i", 0)),
        ("ts-postfix", b"\0\3key" + b"\x80\0\0\0\0\0\0\1", b"\0\3key"),
        ("ts-postfix", b"\0\3" + b"\x80\0\0\0\0\0\0\1", b"\0\3"),
    ]
    bad = [
        ("prefix", b"\0\1abc"),
        ("prefix", b"\0\1" + struct.pack("<i", 5) + b"abcd"),
        ("prefix", b"\0\1" + struct.pack("<i", -1) + b"abcd"),
        ("ts-postfix", b"\0\3abcdefg"),
    ]
    sizes = [(0, 0), (1, 1), (128, 1), (129, 1), (257, 0), (1, 16384), (1, 16385), (1 << 40, 1)]
    return {
        "good": [
            {
                "kind": kind,
                "key": key.hex(),
                "hash": zlib.crc32(used),
                "buckets": {str(n): zlib.crc32(used) % n for n in (1, 2, 8, 1024, 1 << 20)},
            }
            for kind, key, used in cases
        ],
        "bad": [{"kind": kind, "key": key.hex(), "error": "FORMAT"} for kind, key in bad],
        "counts": [
            {"rows": n, "rawBytes": size, "buckets": bucketing.buckets_for(n, size)}
            for n, size in sizes
        ],
    }


def names() -> Any:
    stores = ["default", "left-keyToNumValues", "right-keyWithIndexToValue", "", "Überraschung 雪"]
    tag = f"rs:{GEN}"
    hash_ = "37a8eec1ce19687d"
    assert keys.store_hash("default") == hash_
    ids = [PartitionId(StoreId(GEN, 3, tenant=tenant), 199) for tenant in ("", "team.a-1:")]
    return {
        "stores": [{"store": store, "hash": keys.store_hash(store)} for store in stores],
        "keys": [
            {
                "keyPrefix": id_.store.tenant.rstrip(":"),
                "gen": GEN,
                "operator": 3,
                "partition": 199,
                "store": "default",
                "meta": f"{{{id_.store.tenant}{tag}:3:199:{hash_}}}:m",
                "delta": f"{{{id_.store.tenant}{tag}:3:199:{hash_}}}:d:12:{UID}",
                "snapshot": f"{{{id_.store.tenant}{tag}:3:199:{hash_}}}:s:12:{UID}",
                "query": f"{{{id_.store.tenant}{tag}}}:q",
                "instance": f"{{{id_.store.tenant}{tag}}}:i:3:199:{hash_}",
                "checkpoints": f"{{{id_.store.tenant}rs}}:c",
            }
            for id_ in ids
        ],
    }


assert len(_block("0", 0, 0, b"")) == block.HEADER_BYTES
