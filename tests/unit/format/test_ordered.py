"""Segments written and read many rows at a time are those of the row-by-row code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import FormatError
from redis_state.format import block, ordered
from redis_state.format.bucketing import BYTES_A_BUCKET, ROWS_A_BUCKET
from redis_state.format.entry import Segment
from redis_state.format.rows import Appended
from redis_state.format.segment import SegmentWriter, read_header, read_segment
from redis_state.store.local.families import family_of

IDENT = "d:1:abc"
VALUES = st.none() | st.binary(max_size=40) | st.just(bytes(5000))
ROWS = st.dictionaries(
    st.binary(max_size=6).map(lambda key: ordered.PREFIX + key), VALUES, max_size=400
)


def written(rows: dict[bytes, Any], *, lists: bool = False, **more: Any) -> ordered.Written:
    family = family_of("raw", lists=lists)
    live = sum(value is not None for value in rows.values())
    keys = sorted(rows)
    return ordered.write(
        IDENT, keys, [rows[key] for key in keys], ref="-", live=live, families=[family], **more
    )


def segment_of(found: ordered.Written) -> Segment:
    return Segment(False, 1, "abc", found.entry)


def read_back(found: ordered.Written, *, lists: bool = False) -> dict[bytes, Any]:
    segment = segment_of(found)
    index = ordered.read_index(segment, read_header(segment, found.fields["h"]))
    rows: dict[bytes, Any] = {}
    for number, name in enumerate(index.names()):
        raw = found.fields[name]
        rows.update(zip(*ordered.read_block(segment, index, number, raw, lists=lists), strict=True))
    return rows


@given(ROWS)
def test_written_segment_is_read_by_both_decoders(rows: dict[bytes, Any]) -> None:
    found = written(rows)
    assert read_back(found) == rows
    content = read_segment(segment_of(found), found.fields)
    assert dict(content.rows) == rows
    assert content.families == (family_of("raw"),)


@given(ROWS)
def test_segment_of_the_row_by_row_code_is_read(rows: dict[bytes, Any]) -> None:
    writer = SegmentWriter(IDENT, [family_of("raw")])
    writer.add(rows)
    entry = writer.finish(ref="-", live=0, with_families=True)
    found = ordered.Written(writer.fields, entry, 0)
    if rows:
        assert read_back(found) == rows


@given(ROWS)
def test_blocks_stay_within_the_size_limit(rows: dict[bytes, Any]) -> None:
    for name, raw in written(rows).fields.items():
        if name != "h":
            payload = block.decode(IDENT, name, raw)
            assert len(payload) <= max(BYTES_A_BUCKET, 5100)


def test_blocks_stay_within_the_row_limit() -> None:
    rows = {ordered.PREFIX + b"%04d" % number: b"v" for number in range(1000)}
    found = written(rows)
    assert len(found.fields) - 1 == -(-1000 // ROWS_A_BUCKET)


def test_appended_elements_are_marked() -> None:
    rows: dict[bytes, Any] = {ordered.PREFIX + b"a": b"old+new", ordered.PREFIX + b"b": b"put"}
    found = written(rows, lists=True, appended={ordered.PREFIX + b"a": b"+new"})
    back = read_back(found, lists=True)
    assert back == {ordered.PREFIX + b"a": Appended(b"+new"), ordered.PREFIX + b"b": b"put"}
    with pytest.raises(FormatError, match="a Python store does not write"):
        read_back(found)


def test_rows_of_another_block_are_refused() -> None:
    rows = {ordered.PREFIX + b"%04d" % number: b"v" for number in range(300)}
    found = written(rows)
    segment = segment_of(found)
    index = ordered.read_index(segment, read_header(segment, found.fields["h"]))
    payload = block.decode(IDENT, "0/1", found.fields["0/1"])
    moved = block.encode(IDENT, "0/0", payload)
    with pytest.raises(FormatError, match="not where they belong"):
        ordered.read_block(segment, index, 0, moved, lists=False)
    for nonsense in (b"\x92\xc4\x00", b"\x93\xc0\xc0\xc0", b"\x92\x01\x02", b""):
        with pytest.raises(FormatError):
            ordered.read_block(segment, index, 0, block.encode(IDENT, "0/0", nonsense), lists=False)
