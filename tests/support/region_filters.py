"""Search for the rows of a region in its filters (docs/format.md, section 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from redis_state.errors import FormatError
from redis_state.format import block
from redis_state.format.bucketing import bucketing_hash
from redis_state.format.entry import parse_entry
from redis_state.format.hash_filter import denies
from redis_state.format.region import RegionOwner, read_head, sort_key
from redis_state.format.rows import columns
from redis_state.format.signature import BlockSigner

KINDS = ("none", "prefix", "ts-postfix")
CHUNK = 64

Read = Callable[[int], bytes | None]
"""Returns the filter of a bucket."""


def filters_of(owner: RegionOwner, raw: bytes, head_bytes: int, signer: BlockSigner | None) -> Read:
    head = read_head(owner, raw[-head_bytes:], region_bytes=len(raw), signer=signer)

    def read(bucket: int) -> bytes | None:
        called = head.directory_of(str(bucket))
        return None if called is None else head.filter(called, head.known[called], signer)

    return read


def denied_rows(
    owner: RegionOwner, blocks: Mapping[str, bytes], read: Read
) -> tuple[int, int, Sequence[str]]:
    """Returns how many rows were looked for, how many filters there are, and what was denied."""
    buckets, rows, filters = parse_entry(owner.entry).buckets, 0, set()
    denied = []
    for name, raw in blocks.items():
        if name == "h" or "/" in name:
            continue
        _, bucket, _ = sort_key(name)
        found = read(bucket)
        if found is None:
            continue
        filters.add(bucket // CHUNK)
        for key in columns(block.decode(owner.ident, name, raw))[0]:
            rows += 1
            # Of the kinds that lead to the bucket, one is that of the row.
            for kind in KINDS:
                try:
                    hash_ = bucketing_hash(key, kind=kind)
                except FormatError:
                    continue
                if hash_ & (buckets - 1) == bucket and denies(found, hash_):
                    denied.append(f"{name} {kind}")
    return rows, len(filters), denied
