"""Random segments against plain dicts, and bytes that somebody damaged."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state.errors import FormatError, LimitError
from redis_state.format import block, expiry, header, packing, rows, segment
from redis_state.format.entry import Entry, Segment, parse_segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import Appended, Value, stored_key
from redis_state.format.segment import SegmentWriter, read_segment
from tests.support.whole_versions import merge
from tests.unit.format.vectors import load

IDENT = "d:1:u"
FAMILIES = (
    Family(0, "default", "none", (), "{}", "{}"),
    Family(1, "p", "prefix", (1,), "{}", "{}"),
    Family(2, "l", "none", (), "{}", "{}", multi_value=True),
    Family(3, "r", "range", (0,), "{}", "{}"),
    Family(4, "t", "ts-postfix", (), "{}", "{}"),
)


def _prefixed(prefix: bytes, rest: bytes) -> bytes:
    return struct.pack("<i", len(prefix)) + prefix + rest


SHORT = st.binary(max_size=6)
KEYS = st.one_of(
    SHORT.map(lambda key: stored_key(0, key)),
    st.builds(_prefixed, SHORT, SHORT).map(lambda key: stored_key(1, key)),
    SHORT.map(lambda key: stored_key(2, key)),
    SHORT.map(lambda key: stored_key(3, key)),
    SHORT.map(lambda key: stored_key(4, key + bytes(8))),
)
LISTS = st.lists(SHORT, min_size=1, max_size=3).map(rows.join_elements)


@st.composite
def changes(draw: st.DrawFn) -> dict[bytes, Value]:
    found: dict[bytes, Value] = {}
    for key in draw(st.lists(KEYS, max_size=20)):
        if rows.family_of(key) == 2:
            found[key] = draw(st.one_of(st.none(), LISTS, LISTS.map(Appended)))
        else:
            found[key] = draw(st.one_of(st.none(), st.binary(max_size=40)))
    return found


def _bounds() -> st.SearchStrategy[bytes | None]:
    return st.one_of(st.none(), SHORT)


TOMBSTONES = st.lists(st.builds(Tombstone, st.integers(0, 4), _bounds(), _bounds()), max_size=2)


def _model(
    before: dict[bytes, bytes], tombstones: list[Tombstone], parts: list[dict[bytes, Value]]
) -> dict[bytes, bytes]:
    after = dict(before)
    for one in tombstones:
        for key in list(after):
            low = one.start is None or one.start <= key[2:]
            high = one.end is None or key[2:] < one.end
            if key[:2] == bytes([0, one.family]) and low and high:
                del after[key]
    last: dict[bytes, Value] = {}
    for part in parts:
        last |= part
    for key, value in last.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = after.get(key, b"") + value.data if isinstance(value, Appended) else value
    return after


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(changes(), min_size=1, max_size=2), TOMBSTONES), min_size=1, max_size=4
    ),
    st.sampled_from([None, 1, 4, 64]),
)
def test_merged_versions_equal_dicts(
    history: list[tuple[list[dict[bytes, Value]], list[Tombstone]]], buckets: int | None
) -> None:
    model: dict[bytes, bytes] = {}
    found = []
    for version, (parts, tombstones) in enumerate(history, 1):
        # An ordered family is written once; only hashed rows may come in further parts.
        parts = [parts[0], *({k: v for k, v in p.items() if k[1] != 3} for p in parts[1:])]
        model = _model(model, tombstones, parts)
        writer = SegmentWriter(f"d:{version}:u{version}", FAMILIES, buckets)
        for part in parts:
            writer.add(part)
        entry = writer.finish(
            ref=f"u{version - 1}" if version > 1 else "-",
            live=len(model),
            with_families=version == 1,
            tombstones=tombstones,
        )
        again = parse_segment(f"d:{version}:u{version}", entry.text)
        found.append((again, read_segment(again, writer.fields)))
    assert merge(found).rows == model


SEGMENTS = load("segments.json")["good"]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_segment_is_refused(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([one for one in SEGMENTS if one["fields"]]))
    fields = {name: bytearray.fromhex(text) for name, text in case["fields"].items()}
    name = data.draw(st.sampled_from(sorted(fields)))
    at = data.draw(st.integers(0, len(fields[name]) - 1))
    fields[name][at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        read_segment(
            parse_segment(case["field"], case["entry"]),
            {name: bytes(value) for name, value in fields.items()},
        )


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60))
def test_any_payload_is_read_or_refused(payload: bytes) -> None:
    for decode in (rows.decode, header.decode, rows.split_elements):
        with suppress(FormatError):
            decode(payload)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.binary(max_size=60), changes().map(lambda of: rows.encode([*sorted(of.items())])))
)
def test_whole_and_piecewise_decoding_agree(payload: bytes) -> None:
    found = []
    for at_once in (packing._AT_ONCE_MAX, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "_AT_ONCE_MAX", at_once)
            try:
                found.append(rows.decode(payload))
            except FormatError:
                found.append([])
    assert found[0] == found[1]


@st.composite
def alike(draw: st.DrawFn) -> dict[bytes, Value]:
    """Rows of which all, or all but a few, have keys and values of one length."""
    key, value = draw(st.sampled_from([0, 1, 40, 300])), draw(st.sampled_from([0, 3, 200, 70_000]))
    # Keys and values that look like the heads of others are among them.
    some = st.sampled_from([b"\xc4", b"\0", b"\xc5\0", b"k", b"\x92", bytes([key % 256])])
    of_length = st.builds(lambda piece, n: (piece * (n + 1))[:n], some, st.just(value))
    keys = st.binary(min_size=key, max_size=key) | some.map(lambda piece: (piece * 400)[:key])
    found: dict[bytes, Value] = {
        stored_key(0, one): draw(of_length) for one in draw(st.lists(keys, max_size=12))
    }
    return found | (draw(changes()) if draw(st.booleans()) else {})


@settings(max_examples=300, deadline=None)
@given(st.data(), alike(), st.booleans())
def test_partial_decoding_equals_full_decoding(
    data: st.DataObject, content: dict[bytes, Value], snapshot: bool
) -> None:
    of = Segment(snapshot, 1, "u", Entry("-", 1, 1, 1, 1, 1, 0))
    payload = rows.encode(sorted(content.items()))
    wanted = data.draw(st.lists(st.sampled_from([*content, b"\0\0", b"\0\0\xc4"]), unique=True))
    try:
        table = segment.table_of(of, "0", payload)
    except FormatError:
        with pytest.raises(FormatError):
            segment.some_of(of, "0", payload, wanted)
        return
    assert table == content
    found = segment.some_of(of, "0", payload, wanted)
    assert found == {key: content[key] for key in wanted if key in content}


@pytest.mark.parametrize("swapped", [False, True])
def test_partial_decoding_refuses_what_full_decoding_refuses(swapped: bool) -> None:
    """Keys that come twice, or in another order."""
    one, two = stored_key(0, b"aa"), stored_key(0, b"b\0" if swapped else b"aa")
    pieces = [two, b"1", one, b"2"]
    payload = b"\x94" + b"".join(b"\xc4" + bytes([len(one)]) + one for one in pieces)
    of = Segment(True, 1, "u", Entry("-", 1, 1, 1, 1, 1, 0))
    for wanted in ([one], [two], [stored_key(0, b"zz")]):
        with pytest.raises(FormatError, match="ascending"):
            segment.some_of(of, "0", payload, wanted)


@pytest.mark.parametrize("end", [b"\xc4", b"\xc5", b"\xc5\0", b"\xc4\x01"])
def test_truncated_row_is_refused(end: bytes) -> None:
    of = Segment(True, 1, "u", Entry("-", 1, 1, 1, 1, 1, 0))
    key = stored_key(0, b"")
    with pytest.raises(FormatError):
        segment.some_of(of, "0", b"\x92\xc4" + bytes([len(key)]) + key + end, [key])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.text(max_size=60))
def test_any_entry_is_read_or_refused(field: str, entry: str) -> None:
    with pytest.raises(FormatError):
        parse_segment(field, entry)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdd" + struct.pack(">I", 1 << 20) + b"\xc0" * (1 << 19),
        b"\x92\xc4\x02\0\0" + b"\xdd\x00\xff\xff\xff" * 1000,
        b"\x81\xa1f\x91" + b"\xdd\x00\x00\xff\xff" * 10000,
        b"\x92\xc4\x02\0\0" + b"\x91" * 100_000,
        b"\xdc\x02\x00" * 100_000,
        b"\xdc\xff\xff" * 100_000,
    ],
)
def test_claimed_length_is_not_allocated(payload: bytes) -> None:
    tracemalloc.start()
    try:
        for decode in (rows.decode, header.decode):
            with pytest.raises(FormatError):
                decode(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(payload) + (5 << 20)


def test_frame_with_a_false_length_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    small = block.seal(IDENT, "0", bomb, codec=block.CODEC_ZSTD, raw_length=1000)
    unknown = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 20))
    unstated = block.seal(IDENT, "0", unknown, codec=block.CODEC_ZSTD, raw_length=1000)
    frame = zstandard.ZstdCompressor(level=1).compress(b"a" * 1000)
    two = block.seal(IDENT, "0", frame + frame, codec=block.CODEC_ZSTD, raw_length=1000)
    tracemalloc.start()
    try:
        for raw in (small, unstated, two):
            with pytest.raises(FormatError):
                block.decode(IDENT, "0", raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_limits_are_checked_before_anything_is_written() -> None:
    key = stored_key(0, bytes(rows.KEY_BYTES_MAX))
    assert rows.decode(rows.encode([(key, b"")])) == [(key, b"")]
    with pytest.raises(LimitError):
        rows.encode([(key + b"x", b"")])
    # The expiry of a row with a time to live does not count.
    largest = bytes(rows.VALUE_BYTES_MAX + expiry.EXPIRY_BYTES)
    assert rows.encode([(stored_key(0, b""), largest)])
    with pytest.raises(LimitError):
        rows.encode([(stored_key(0, b""), largest + b"x")])
    with pytest.raises(LimitError):
        rows.check_limits(stored_key(0, b""), bytes(rows.VALUE_BYTES_MAX + 1))


def test_large_buckets_are_split_and_large_values_get_their_own_block() -> None:
    content: dict[bytes, Value] = {
        stored_key(0, b"k%04d" % number): b"v" * 1000 for number in range(200)
    }
    large = stored_key(0, b"k0100-large")
    content[large] = b"x" * (segment.OWN_PART_BYTES + 1)
    writer = SegmentWriter(IDENT, FAMILIES, buckets=1)
    writer.add(content)
    entry = writer.finish(ref="-", live=len(content), with_families=True)
    one = Segment(False, 1, "u", entry)
    sizes = {
        name: rows.decode(block.decode(IDENT, name, raw))
        for name, raw in writer.fields.items()
        if name != header.FIELD
    }
    assert [(large, content[large])] in sizes.values()
    for part in sizes.values():
        assert len(part) == 1 or sum(map(rows.raw_bytes, part)) <= segment.PART_BYTES_MAX
    assert read_segment(one, writer.fields).rows == content


def test_the_fitting_number_of_buckets_is_chosen() -> None:
    content: dict[bytes, Value] = {stored_key(0, b"%d" % n): b"v" for n in range(1000)}
    writer = SegmentWriter(IDENT, FAMILIES)
    writer.add(content)
    assert writer.finish(ref="-", live=1000, with_families=True).buckets == 8
