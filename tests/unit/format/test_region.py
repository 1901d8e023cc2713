"""Regions of files and places of segments (docs/format.md, section 17)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from redis_state.errors import FormatError
from redis_state.format.entry import parse_segment
from redis_state.format.place import parse_place
from redis_state.format.region import read_head, read_region
from redis_state.format.signature import BlockSigner
from tests.unit.format.vectors import load, owner_of

FILES = load("files.json")
PLACES = load("places.json")
SIGNER = BlockSigner(bytes.fromhex(FILES["secret"]))


def regions() -> list[tuple[Any, Any]]:
    return [(case, region) for case in FILES["cases"] for region in case["regions"]]


def bytes_of(case: Any, region: Any) -> bytes:
    _, place = parse_place(region["place"])
    assert place is not None
    return bytes.fromhex(case["hex"])[place.offset : place.offset + place.bytes]


@pytest.mark.parametrize("case", PLACES["good"], ids=lambda case: case["text"] or "none")
def test_place_is_parsed(case: Any) -> None:
    gen, file = parse_place(case["text"])
    assert gen == case["gen"]
    if case["file"] is None:
        assert file is None
    else:
        assert file is not None
        assert file.text == case["text"]
        found = {"name": file.file, "offset": file.offset, "bytes": file.bytes, "head": file.head}
        assert found == case["file"]


@pytest.mark.parametrize("text", PLACES["refused"])
def test_malformed_place_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_place(text)


@pytest.mark.parametrize(("case", "region"), regions())
def test_region_has_the_values_of_redis(case: Any, region: Any) -> None:
    signer = SIGNER if case["signed"] else None
    found = read_region(owner_of(case, region), bytes_of(case, region), signer=signer)
    assert {name: value.hex() for name, value in found.items()} == region["values"]


@pytest.mark.parametrize(("case", "region"), regions())
def test_head_alone_gives_the_place_of_each_field(case: Any, region: Any) -> None:
    signer = SIGNER if case["signed"] else None
    raw, (_, place) = bytes_of(case, region), parse_place(region["place"])
    assert place is not None
    head = read_head(
        owner_of(case, region), raw[-place.head :], region_bytes=len(raw), signer=signer
    )
    for name, value in region["values"].items():
        if name == "h":
            assert head.header is not None
            assert head.header.hex() == value
            continue
        called = head.directory_of(name)
        assert called is not None
        offset, length = head.spans(called, head.known[called], signer)[name]
        assert raw[offset : offset + length].hex() == value


def test_region_of_another_segment_is_refused() -> None:
    case = FILES["cases"][0]
    first, second = case["regions"][:2]
    with pytest.raises(FormatError):
        read_region(owner_of(case, first), bytes_of(case, second))
    moved = dict(case, partition=4)
    with pytest.raises(FormatError, match="another segment"):
        read_region(owner_of(moved, first), bytes_of(case, first))


def test_signed_region_needs_the_secret() -> None:
    case = FILES["cases"][1]
    region = case["regions"][0]
    for signer in (None, BlockSigner(b"another secret of thirty-two byte")):
        with pytest.raises(FormatError):
            read_region(owner_of(case, region), bytes_of(case, region), signer=signer)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_head_is_refused_or_gives_the_same_values(seed: int) -> None:
    dice = random.Random(seed)
    for case, region in regions():
        signer = SIGNER if case["signed"] else None
        raw = bytearray(bytes_of(case, region))
        (_, place), owner = parse_place(region["place"]), owner_of(case, region)
        assert place is not None
        for _ in range(dice.choice((1, 1, 3))):
            at = len(raw) - 1 - dice.randrange(place.head)
            raw[at] ^= 1 << dice.randrange(8)
        cut = bytes(raw[: -dice.randrange(1, 40)]) if dice.random() < 0.3 else bytes(raw)
        try:
            found = read_region(owner, cut, signer=signer)
        except FormatError:
            continue
        # The value of the header has a check of its own, which its reader looks at.
        kept = {name: value.hex() for name, value in found.items() if name != "h"}
        assert kept == {name: value for name, value in region["values"].items() if name != "h"}


def test_moved_segment_stays_equal() -> None:
    region = FILES["cases"][0]["regions"][0]
    here = parse_segment(region["field"], region["entry"])
    there = parse_segment(region["field"], region["entry"], region["place"])
    assert here == there
    assert hash(here) == hash(there)
    assert there.place is not None
    assert here.place is None
