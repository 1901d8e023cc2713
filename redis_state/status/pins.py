"""Pins, forks and foreign segments of a status (docs/format.md, section 14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from redis_state.ids import is_gen
from redis_state.protocol.pins import FORK, FORK_OF, KEEP, kept_name, owners_in
from redis_state.protocol.registry import QueryInfo
from redis_state.protocol.texts import number_or_zero
from redis_state.status.query_status import PartitionStatus, PinStatus, QueryStatus

IN_FILE = b"f "
"""Begin of the place of a segment in a file."""

_ASIDE = b"z:"
_BYTES_WORD = 5


def pins_in(manifest: Mapping[bytes, bytes]) -> tuple[tuple[PinStatus, ...], int]:
    """Returns the pins of a partition, and the bytes of its own segments that were set aside.

    Raises:
        ValueError: An entry is damaged.
        LookupError: An entry is damaged.
    """
    by_owner: dict[bytes, int] = {}
    total = 0
    for name, value in manifest.items():
        if name[:2] == _ASIDE and b"a:" + name[2:] not in manifest:
            size = int(value.split(b" ")[_BYTES_WORD])
            total += size
            for owner in manifest.get(b"y:" + name[2:], b"").split():
                by_owner[owner] = by_owner.get(owner, 0) + size
    damaged: list[bytes] = []
    owners = owners_in(manifest, damaged.append)
    if damaged or any(one.kind not in (FORK, KEEP) or not one.owner.isascii() for one in owners):
        raise ValueError("a pin is damaged")
    found = [
        PinStatus(
            kept_name(one.owner) if one.kind == KEEP else one.owner,
            one.kind,
            one.version,
            one.expires_ms,
            by_owner.get(one.owner.encode(), 0),
        )
        for one in owners
    ]
    return tuple(sorted(found, key=lambda one: (one.kind, one.owner))), total


def aside_in_files(manifest: Mapping[bytes, bytes]) -> int:
    """Returns the bytes of segments that were set aside, and that files hold.

    Raises:
        ValueError: An entry is damaged.
        LookupError: An entry is damaged.
    """
    return sum(
        int(value.split(b" ")[_BYTES_WORD])
        for name, value in manifest.items()
        if name[:2] == _ASIDE and manifest.get(b"a:" + name[2:], b"").startswith(IN_FILE)
    )


def total_pins(partitions: Iterable[PartitionStatus]) -> tuple[PinStatus, ...]:
    """Returns the pins of a query, each with the bytes of all partitions."""
    found: dict[tuple[str, str], PinStatus] = {}
    for one in partitions:
        for pin in one.pins:
            known = found.get((pin.kind, pin.owner))
            whole = pin
            if known is not None:
                whole = replace(
                    known,
                    version=max(known.version, pin.version),
                    bytes=known.bytes + pin.bytes,
                )
            found[pin.kind, pin.owner] = whole
    return tuple(found[name] for name in sorted(found))


def fork_of(raw: Mapping[bytes, bytes]) -> tuple[str, int]:
    """Returns parent and version of a fork by the hash of its query; empty and 0 without one."""
    gen, _, version = raw.get(FORK_OF.encode(), b"").decode("ascii", "replace").partition(" ")
    return (gen, number_or_zero(version.encode())) if is_gen(gen) else ("", 0)


def titled(found: Sequence[QueryStatus], listed: Sequence[QueryInfo]) -> list[QueryStatus]:
    """Adds the names of parents and forks, as far as they are listed."""
    titles = {info.gen: title_of(info) for info in listed}
    return [
        replace(
            one,
            fork_title=titles.get(one.fork_of, ""),
            pins=tuple(
                replace(pin, title=titles.get(pin.owner, "")) if pin.kind == FORK else pin
                for pin in one.pins
            ),
        )
        for one in found
    ]


def title_of(info: QueryInfo) -> str:
    """Returns the name of a query, or its id."""
    return info.name or info.id
