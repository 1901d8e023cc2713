"""Filters of files (docs/format.md, section 17)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types
import pytest

from redis_state.errors import FormatError
from redis_state.format import block, hash_filter
from redis_state.format.bucketing import hashes_in
from redis_state.format.hash_filter import FilterMaker, check_filter, denies, make_filter
from redis_state.format.place import parse_place
from redis_state.format.region import read_region, write_region
from redis_state.format.rows import columns, encode, stored_key
from redis_state.format.signature import BlockSigner
from tests.support.region_filters import denied_rows, filters_of
from tests.unit.format.vectors import load, owner_of

FILTERS = load("filters.json")
FILES = load("files.json")
SIGNER = BlockSigner(bytes.fromhex(FILES["secret"]))


@pytest.mark.parametrize("case", FILTERS["cases"], ids=lambda case: len(case["hashes"]))
def test_filter_has_its_hashes_alone(case: Any) -> None:
    raw = make_filter(case["hashes"])
    assert raw is not None
    assert raw.hex() == case["filter"]
    assert not any(denies(raw, one) for one in case["hashes"])
    assert all(denies(raw, one) for one in case["denied"])


@pytest.mark.parametrize("case", FILTERS["rows"])
def test_key_of_unknown_kind_has_the_hashes_of_its_bucket(case: Any) -> None:
    key = bytes.fromhex(case["key"])
    found = hashes_in(key, bucket=case["bucket"], buckets=case["buckets"])
    assert sorted(found) == case["hashes"]


def test_directory_with_a_filter_of_a_wrong_length_is_refused() -> None:
    directories = FILTERS["directories"]
    good = msgpack.unpackb(bytes.fromhex(directories["good"]))
    assert check_filter(good["b"]) == good["b"]
    for refused in directories["refused"]:
        with pytest.raises(FormatError):
            check_filter(msgpack.unpackb(bytes.fromhex(refused))["b"])
    with pytest.raises(FormatError):
        check_filter(bytes(hash_filter.BYTES_MAX + 32))


def test_one_in_a_hundred_absent_hashes_is_not_denied() -> None:
    dice = random.Random(11)
    raw = make_filter(dice.getrandbits(32) for _ in range(7_800))
    assert raw is not None
    assert len(raw) == 9_760
    found = sum(not denies(raw, dice.getrandbits(32)) for _ in range(50_000))
    assert 0.008 < found / 50_000 < 0.016


def test_filter_that_would_be_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_filter, "BYTES_MAX", 64)
    assert make_filter(range(51)) is not None
    assert make_filter(range(52)) is None


def test_filters_of_a_region_end_at_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_filter, "REGION_BYTES_MAX", 70)
    maker = FilterMaker("d:1:u", 1, lambda _, raw: raw)
    rows = [(stored_key(0, bytes([n])), b"v") for n in range(40)]
    found = []
    for at in range(4):
        maker.add(str(at), 0, block.encode("d:1:u", str(at), encode(rows[: 40 if at == 1 else 1])))
        found.append(maker.end())
    assert [None if one is None else len(one) for one in found] == [32, None, None, None]


def test_damaged_block_leaves_its_filter_out() -> None:
    maker = FilterMaker("d:1:u", 1, lambda _, raw: raw)
    good = block.encode("d:1:u", "0", encode([(stored_key(0, b"k"), b"v")]))
    maker.add("0", 0, good)
    maker.add("0.1", 0, good)
    assert maker.end() is None
    maker.add("0", 0, good)
    assert maker.end() is not None


def regions() -> Iterator[tuple[Any, Any]]:
    return ((case, region) for case in FILES["cases"] for region in case["regions"])


def judged() -> tuple[int, int, Sequence[str]]:
    """Writes the regions of all vectors, and looks for their rows."""
    sums = [0, 0]
    denied: list[str] = []
    for case, region in regions():
        if case["signed"]:
            continue
        owner = owner_of(case, region)
        values = {name: bytes.fromhex(raw) for name, raw in region["values"].items()}
        pieces = list(write_region(owner, values))
        read = filters_of(owner, b"".join(pieces), len(pieces[-1]), None)
        rows, filters, wrong = denied_rows(owner, values, read)
        sums = [sums[0] + rows, sums[1] + filters]
        denied += wrong
    return sums[0], sums[1], denied


def test_no_row_is_denied() -> None:
    rows, filters, denied = judged()
    assert rows > 600
    assert filters > 10
    assert denied == []


def _without_removed(self: FilterMaker, field: str, bucket: int, value: bytes) -> None:
    keys, values = columns(block.decode(self._ident, field, value))
    for key, one in zip(keys, values, strict=True):
        if one is not None:
            self._hashes |= hashes_in(key, bucket=bucket, buckets=self._buckets)


def _of_other_bytes(self: FilterMaker, field: str, _: int, value: bytes) -> None:
    for key in columns(block.decode(self._ident, field, value))[0]:
        self._hashes.add(zlib.crc32(key[2:]))


def _without_further_parts(self: FilterMaker, field: str, bucket: int, value: bytes) -> None:
    if "." not in field:
        _add(self, field, bucket, value)


def _of_another_bucket(self: FilterMaker, field: str, bucket: int, value: bytes) -> None:
    for key in columns(block.decode(self._ident, field, value))[0]:
        self._hashes |= hashes_in(key, bucket=bucket + 1, buckets=self._buckets) or {0}


_add = FilterMaker.add


@pytest.mark.parametrize(
    "mutant", [_without_removed, _of_other_bytes, _without_further_parts, _of_another_bucket]
)
def test_mutant_of_a_filter_denies_rows(
    mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FilterMaker, "add", mutant)
    _, _, denied = judged()
    assert denied


@pytest.mark.parametrize("seed", range(10))
def test_damaged_region_denies_no_row(seed: int) -> None:
    dice = random.Random(seed)
    for case, region in regions():
        signer = SIGNER if case["signed"] else None
        owner, (_, place) = owner_of(case, region), parse_place(region["place"])
        assert place is not None
        raw = bytearray(bytes.fromhex(case["hex"])[place.offset : place.offset + place.bytes])
        blocks = read_region(owner, bytes(raw), signer=signer)
        plain = {
            name: one if signer is None else signer.opened(owner.key, name, one)
            for name, one in blocks.items()
        }
        for _ in range(dice.choice((1, 1, 3))):
            raw[len(raw) - 1 - dice.randrange(place.head)] ^= 1 << dice.randrange(8)
        try:
            _, _, denied = denied_rows(
                owner, plain, filters_of(owner, bytes(raw), place.head, signer)
            )
        except FormatError:
            continue
        assert denied == []
