"""Segments of several ordered families, many rows at a time, are those of the row-by-row code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import FormatError, InternalError
from redis_state.format import block, header, ordered
from redis_state.format.entry import Segment
from redis_state.format.header import FAMILY_ID_MAX, Family, Header, Tombstone
from redis_state.format.rows import Appended, family_of, stored_key
from redis_state.format.segment import SegmentWriter, read_header, read_segment

IDENT = "d:2:abc"
IDS = (1, 2, 255, 256, FAMILY_ID_MAX)
LISTS = 2
VALUES = st.none() | st.binary(max_size=40) | st.just(bytes(5000))
ROWS = st.dictionaries(
    st.builds(stored_key, st.sampled_from(IDS), st.binary(max_size=6)), VALUES, max_size=400
)


def family(id_: int) -> Family:
    return Family(id_, f"family {id_}", "range", (0,), "{}", "{}", id_ == LISTS)


TABLE = tuple(map(family, IDS))


def written(rows: dict[bytes, Any], **more: Any) -> ordered.Written:
    keys = sorted(rows)
    values = [rows[key] for key in keys]
    return ordered.write(IDENT, keys, values, **{"ref": "-", "live": 0, "families": TABLE, **more})


def segment_of(found: ordered.Written) -> Segment:
    return Segment(False, 2, "abc", found.entry)


def index_of(found: ordered.Written) -> ordered.Index:
    segment = segment_of(found)
    return ordered.read_index(segment, read_header(segment, found.fields.get("h")))


def read_back(found: ordered.Written) -> dict[bytes, Any]:
    index, segment = index_of(found), segment_of(found)
    rows: dict[bytes, Any] = {}
    for number, name in enumerate(index.names()):
        assert index.name(number) == name
        lists = index.family_id(number) == LISTS
        keys, values = ordered.read_block(segment, index, number, found.fields[name], lists=lists)
        assert {family_of(key) for key in keys} == {index.family_id(number)}
        rows.update(zip(keys, values, strict=True))
    return rows


@given(ROWS)
def test_written_segment_is_read_by_both_decoders(rows: dict[bytes, Any]) -> None:
    found = written(rows)
    assert read_back(found) == rows
    assert list(index_of(found).firsts) == sorted(index_of(found).firsts)
    content = read_segment(segment_of(found), found.fields)
    assert dict(content.rows) == rows
    assert (content.families, content.highest_id) == (TABLE, None)


@given(ROWS)
def test_segment_of_the_row_by_row_code_is_read(rows: dict[bytes, Any]) -> None:
    writer = SegmentWriter(IDENT, TABLE)
    writer.add(rows)
    entry = writer.finish(ref="-", live=0, with_families=True)
    assert read_back(ordered.Written(writer.fields, entry, 0)) == rows


@given(ROWS, st.sampled_from(IDS), st.booleans())
def test_delta_lists_cleared_families_and_the_highest_id(
    rows: dict[bytes, Any], gone: int, with_families: bool
) -> None:
    left = {key: value for key, value in rows.items() if family_of(key) != gone}
    table = tuple(one for one in TABLE if one.id != gone)
    found = written(
        left,
        families=table,
        highest_id=FAMILY_ID_MAX,
        with_families=with_families,
        cleared=[gone],
    )
    content = read_segment(segment_of(found), found.fields)
    assert content.tombstones == (Tombstone(gone),)
    assert content.families == (table if with_families else None)
    says = with_families and gone == FAMILY_ID_MAX
    assert content.highest_id == (FAMILY_ID_MAX if says else None)
    assert read_back(found) == left


def test_elements_are_appended_in_families_of_lists_alone() -> None:
    key, other = stored_key(LISTS, b"a"), stored_key(1, b"a")
    found = written({key: b"old+new", other: b"put"}, appended={key: b"+new"})
    assert read_back(found) == {key: Appended(b"+new"), other: b"put"}
    with pytest.raises(FormatError, match="of a kind that a Python store does not"):
        read_back(written({other: b"old+new"}, appended={other: b"+new"}))


def test_rows_of_no_family_or_out_of_order_are_not_written() -> None:
    with pytest.raises(InternalError, match="no family"):
        written({stored_key(3, b"a"): b"", stored_key(1, b"a"): b""})
    for ids in ((2, 1), (1, 2, 1), (FAMILY_ID_MAX, 1)):
        keys = [stored_key(id_, b"a") for id_ in ids]
        with pytest.raises(InternalError, match="ascending order"):
            ordered.write(IDENT, keys, keys, ref="-", live=0, families=TABLE)


def test_index_of_another_family_is_refused() -> None:
    segment = segment_of(written({stored_key(1, b"a"): b"", stored_key(2, b"a"): b""}))
    for first in (stored_key(1, b"b"), stored_key(3, b""), b"", b"\0"):
        head = Header(TABLE, {1: (stored_key(1, b"a"),), 2: (first,)})
        with pytest.raises(FormatError, match="another family"):
            ordered.read_index(segment, header.decode(header.encode(head)))
    for ids in ({}, {1: (stored_key(1, b"a"),)}, {1: (stored_key(1, b"a"), b"\0\1b"), 2: ()}):
        with pytest.raises(FormatError, match="not in order"):
            ordered.read_index(segment, Header(TABLE, ids))


def test_a_block_with_a_key_of_the_next_family_is_refused() -> None:
    keys = [stored_key(1, b"a"), stored_key(2, b"a")]
    found = written(dict.fromkeys(keys, b""))
    payload = b"\x94" + b"".join(b"\xc4" + bytes([len(key)]) + key + b"\xc4\0" for key in keys)
    moved = block.encode(IDENT, "1/0", payload)
    with pytest.raises(FormatError, match="not where they belong"):
        ordered.read_block(segment_of(found), index_of(found), 0, moved, lists=False)


def test_block_names_of_a_single_family_are_known_before_the_header() -> None:
    rows = {stored_key(0, b"%04d" % number): b"v" for number in range(300)}
    alone = Family(0, "default", "range", (0,), "{}", "{}")
    found = written(rows, families=[alone])
    assert ordered.likely_names(segment_of(found), [alone]) == index_of(found).names()
    assert ordered.likely_names(segment_of(found), TABLE) == []
    assert ordered.likely_names(segment_of(found), []) == []
