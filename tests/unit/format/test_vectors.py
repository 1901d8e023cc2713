"""Format in Python: reading and writing, on the vectors that the JVM adapter is tested on too."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state import keys
from redis_state.errors import FormatError
from redis_state.format import block, bucketing, header, rows
from redis_state.format.entry import parse_entry, parse_segment
from redis_state.format.segment import checksum, read_segment
from redis_state.ids import PartitionId, Pin, StoreId
from tests.support.whole_versions import merge
from tests.unit.format.vectors import family_of, load, names, row_of, tombstone_of
from tests.vectors import generate

BLOCKS = load("blocks.json")
ROWS = load("rows.json")
HEADERS = load("headers.json")
ENTRIES = load("entries.json")
BUCKETS = load("buckets.json")
NAMES = load("names.json")
SEGMENTS = load("segments.json")
VERSIONS = load("versions.json")


def test_vector_files_are_current() -> None:
    assert generate.stale() == []


@pytest.mark.parametrize("case", BLOCKS["good"], ids=names(BLOCKS["good"]))
def test_a_block_is_read(case: dict[str, Any]) -> None:
    raw, payload = bytes.fromhex(case["block"]), bytes.fromhex(case["payload"])
    assert block.decode(BLOCKS["ident"], case["field"], raw) == payload
    again = block.encode(BLOCKS["ident"], case["field"], payload, compress=False)
    if case["codec"] == block.CODEC_NONE:
        assert again == raw
    else:
        compressed = block.encode(BLOCKS["ident"], case["field"], payload)
        assert compressed[1] == block.CODEC_ZSTD
        assert block.decode(BLOCKS["ident"], case["field"], compressed) == payload


@pytest.mark.parametrize("case", BLOCKS["bad"], ids=names(BLOCKS["bad"]))
def test_a_wrong_block_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as caught:
        block.decode(BLOCKS["ident"], case["field"], bytes.fromhex(case["block"]))
    assert caught.value.kind == case["error"]


@pytest.mark.parametrize("case", ROWS["good"], ids=names(ROWS["good"]))
def test_rows_are_read_and_written(case: dict[str, Any]) -> None:
    expected = [row_of(row) for row in case["rows"]]
    assert rows.decode(bytes.fromhex(case["payload"])) == expected
    assert rows.encode(expected).hex() == case["payload"]


@pytest.mark.parametrize("case", ROWS["bad"], ids=names(ROWS["bad"]))
def test_wrong_rows_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        rows.decode(bytes.fromhex(case["payload"]))


@pytest.mark.parametrize("case", HEADERS["good"], ids=names(HEADERS["good"]))
def test_a_header_is_read_and_written(case: dict[str, Any]) -> None:
    found = header.decode(bytes.fromhex(case["payload"]))
    expected = case["header"]
    families = expected["families"]
    assert found.families == (families and tuple(map(family_of, families)))
    assert found.ordered == {
        int(id_): tuple(map(bytes.fromhex, all_)) for id_, all_ in expected["ordered"].items()
    }
    assert found.parts == {int(bucket): count for bucket, count in expected["parts"].items()}
    assert found.tombstones == tuple(map(tombstone_of, expected["tombstones"]))
    assert found.highest_id == expected["highest"]
    assert header.encode(found).hex() == case["payload"]


@pytest.mark.parametrize("case", HEADERS["bad"], ids=names(HEADERS["bad"]))
def test_a_wrong_header_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        header.decode(bytes.fromhex(case["payload"]))


@pytest.mark.parametrize("case", ENTRIES["good"])
def test_an_entry_is_read_and_written(case: dict[str, Any]) -> None:
    entry = parse_entry(case["text"])
    assert {name: getattr(entry, name) for name in case if name != "text"} == {
        name: value for name, value in case.items() if name != "text"
    }
    assert entry.text == case["text"]


@pytest.mark.parametrize("case", ENTRIES["bad"])
def test_a_wrong_entry_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        parse_entry(case["text"])


def test_manifest_fields_match_the_vectors() -> None:
    entry = "w 1 1 1 90 1 7 -"
    for case in ENTRIES["fields"]["good"]:
        segment = parse_segment(case["field"], entry)
        assert (segment.snapshot, segment.version) == (case["snapshot"], case["version"])
        assert segment.uid == case["uid"]
        assert segment.field == case["field"]
    for field in ENTRIES["fields"]["bad"]:
        with pytest.raises(FormatError):
            parse_segment(field, entry)


def test_hot_runs_match_the_vectors() -> None:
    for case in ENTRIES["hotRuns"]["good"]:
        segment = parse_segment(case["field"], case["text"])
        assert (segment.field, segment.ident) == (case["field"], case["ident"])
        assert segment.parent == Pin(case["version"], case["uid"])
        assert segment.entry.text == case["entry"]
        assert not segment.alone
    for text in ENTRIES["hotRuns"]["bad"]:
        with pytest.raises(FormatError):
            parse_segment("r:12:u", text)


def test_buckets_match_the_vectors() -> None:
    for case in BUCKETS["good"]:
        key, kind = bytes.fromhex(case["key"]), case["kind"]
        assert bucketing.bucketing_hash(key, kind=kind) == case["hash"]
        for count, bucket in case["buckets"].items():
            assert bucketing.bucket_of(key, kind=kind, buckets=int(count)) == bucket
    for case in BUCKETS["bad"]:
        with pytest.raises(FormatError):
            bucketing.bucketing_hash(bytes.fromhex(case["key"]), kind=case["kind"])
    with pytest.raises(FormatError):
        bucketing.bucketing_hash(b"\0\0key", kind="range")
    for case in BUCKETS["counts"]:
        assert bucketing.buckets_for(case["rows"], case["rawBytes"]) == case["buckets"]


def test_key_names_match_the_vectors() -> None:
    for case in NAMES["stores"]:
        assert keys.store_hash(case["store"]) == case["hash"]
    for case in NAMES["keys"]:
        tenant = keys.tenant_of(case["keyPrefix"])
        store = StoreId(case["gen"], case["operator"], case["store"], tenant)
        id_ = PartitionId(store, case["partition"])
        assert keys.meta(id_) == case["meta"]
        assert keys.segment(id_, case["delta"].partition("}:")[2]) == case["delta"]
        assert keys.segment(id_, case["snapshot"].partition("}:")[2]) == case["snapshot"]
        assert keys.query(case["gen"], tenant=tenant) == case["query"]
        assert keys.instance(id_) == case["instance"]
        assert keys.checkpoints(tenant=tenant) == case["checkpoints"]
        for name in ("meta", "delta", "snapshot", "query", "instance"):
            assert keys.owned_by(case[name], gen=case["gen"], tenant=tenant)
            assert not keys.owned_by(case[name], gen="f" * 32, tenant=tenant)
            assert not keys.owned_by(case[name], gen=case["gen"], tenant="other:")
            assert not keys.owned_by(case[name] + "x", gen=case["gen"], tenant="other:")
        assert not keys.owned_by(case["checkpoints"], gen=case["gen"], tenant=tenant)


def _fields(case: dict[str, Any]) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in case["fields"].items()}


@pytest.mark.parametrize("case", SEGMENTS["good"], ids=names(SEGMENTS["good"]))
def test_a_segment_is_read(case: dict[str, Any]) -> None:
    segment = parse_segment(case["field"], case["entry"])
    assert segment.ident == case["ident"]
    assert segment.entry.header == case["hasHeader"]
    content = read_segment(segment, _fields(case))
    assert content.rows == dict(map(row_of, case["rows"]))
    families = case["families"]
    assert content.families == (families and tuple(map(family_of, families)))
    assert content.tombstones == tuple(map(tombstone_of, case["tombstones"]))
    assert checksum(_fields(case)) == segment.entry.checksum


@pytest.mark.parametrize("case", SEGMENTS["bad"], ids=names(SEGMENTS["bad"]))
def test_a_wrong_segment_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_segment(parse_segment(case["field"], case["entry"]), _fields(case))


@pytest.mark.parametrize("case", VERSIONS, ids=names(VERSIONS))
def test_a_version_is_merged(case: dict[str, Any]) -> None:
    by_name = {one["name"]: one for one in SEGMENTS["good"]}
    chosen = [by_name[name] for name in case["segments"]]
    parsed = [(parse_segment(one["field"], one["entry"]), _fields(one)) for one in chosen]
    version = merge((segment, read_segment(segment, fields)) for segment, fields in parsed)
    expected = {bytes.fromhex(key): bytes.fromhex(value) for key, value in case["rows"]}
    assert version.visible == expected
    assert version.families == {one.id: one for one in map(family_of, case["families"])}


def test_a_field_too_many_is_refused() -> None:
    case = next(one for one in SEGMENTS["good"] if one["name"] == "first")
    fields = _fields(case)
    with pytest.raises(FormatError):
        read_segment(parse_segment(case["field"], case["entry"]), fields | {"x": fields["0"]})


def test_a_gap_in_the_lineage_is_refused() -> None:
    by_name = {one["name"]: one for one in SEGMENTS["good"]}
    for chosen in (["second"], ["first", "nothing changed"]):
        parsed = [
            (parse_segment(by_name[n]["field"], by_name[n]["entry"]), by_name[n]) for n in chosen
        ]
        with pytest.raises(FormatError):
            merge((segment, read_segment(segment, _fields(one))) for segment, one in parsed)
