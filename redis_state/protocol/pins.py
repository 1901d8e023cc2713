"""Pins, which hold the segments of a version for an owner (docs/format.md, section 14)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms, words
from redis_state.backend.script import Command, script
from redis_state.errors import Kind, LimitError, StateError, UsageError
from redis_state.format.entry import Segment, parse_segment
from redis_state.format.place import foreign_segments
from redis_state.ids import PartitionId, Pin, text_number
from redis_state.protocol.foreign import FORKED_FROM, parent_in
from redis_state.protocol.opening import Opened
from redis_state.protocol.refusal import not_there, refusal

FORK = "fork"
KEEP = "keep"
KEEP_OWNER = "keep."
"""Prefix of the owner of a kept version; name, a dot, and an id of the call follow."""

FORKS = "fork:"
"""Prefix of the registry fields that name the forks of a query."""

FORK_OF = "forkOf"
"""Registry field of a fork: checkpoint id of its parent, and the version it began with."""

_OWNER = b"x:"
_CALL_DIGITS = 8
_PIN = re.compile(rb"(\d+) (\S+) (\d+) (\S+)(?: .*)?")

_WHAT = "pinning a version"
_READING = "reading a pinned version"


@dataclass(frozen=True, slots=True)
class PinOwner:
    """Owner of a pin in a manifest.

    Attributes:
        owner: Checkpoint id of a fork, or see `keep_owner`.
        kind: `FORK` or `KEEP`; a newer release may have more.
        expires_ms: 0 for never.
    """

    owner: str
    kind: str
    version: int
    expires_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Returns whether the pin has expired."""
        return 0 < self.expires_ms <= now_ms


def keep_owner(name: str) -> str:
    """Returns an owner for a call that keeps a version; no other call has the same."""
    return f"{KEEP_OWNER}{name}.{uuid.uuid4().hex[:_CALL_DIGITS]}"


def kept_name(owner: str) -> str:
    """Returns the name of the kept version that has a pin."""
    name, _, call = owner.removeprefix(KEEP_OWNER).rpartition(".")
    return name or call


def owners_in(
    manifest: Mapping[bytes, bytes], damaged: Callable[[bytes], object] | None = None
) -> list[PinOwner]:
    """Returns the owners of all pins in a manifest.

    Args:
        damaged: Called with the field of each malformed pin, which is skipped.
    """
    found = []
    for name, value in manifest.items():
        if name[:2] != _OWNER:
            continue
        pin = _PIN.fullmatch(value)
        if pin is not None:
            owner, kind = (raw.decode("ascii", "replace") for raw in (name[2:], pin[4]))
            found.append(PinOwner(owner, kind, int(pin[1]), int(pin[3])))
        elif damaged is not None:
            damaged(name)
    return found


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """The version of one partition that an owner pins.

    Attributes:
        retained: The parent's number of retained versions.
        checkpoint_format: Spark's checkpoint format of the run that wrote it, 1 or 2.
        segments: Newest first.
    """

    id: PartitionId
    pin: Pin
    retained: str
    checkpoint_format: str
    segments: tuple[Segment, ...]

    @property
    def floor(self) -> int:
        """The lowest version that can be read from the segments."""
        return self.segments[-1].version if self.segments and self.segments[-1].alone else 0


def pin_all(
    client: Client,
    ids: Sequence[PartitionId],
    owner: str,
    version: int,
    *,
    kind: str,
    uids: Mapping[PartitionId, str] | None = None,
    ttl_ms: int = 0,
    lasting: bool = False,
) -> list[PinnedVersion]:
    """Pins a version of each partition, in one pipeline; a second call renews the pins.

    Args:
        owner: Id of the fork, or see `keep_owner`.
        kind: `FORK` or `KEEP`.
        uids: The wanted attempts, by partition; without one, that on the living timeline.
        ttl_ms: Time until the pins expire; 0 for never.
        lasting: Waits until a replica has the pins, where the server has one.

    Raises:
        StateError: A partition does not have the version, or lost a segment of it.
        UsageError: The owner pins another version, or the checkpoint is ephemeral.
        LimitError: A segment has as many owners as it may have.
        FormatError: A partition is of another format, or purged.
    """
    known = uids or {}
    calls: list[tuple[str, Sequence[str | bytes]]] = [
        (keys.meta(id_), (owner, kind, str(version), known.get(id_, ""), str(ttl_ms)))
        for id_ in ids
    ]
    call = client.call_lasting if lasting else client.call
    replies = call(_WHAT, script("pin").many(calls)) if calls else []
    return [
        _pinned(id_, words(_WHAT, reply, where=str(id_)), owner, version)
        for id_, reply in zip(ids, replies, strict=True)
    ]


def _pinned(id_: PartitionId, reply: list[str], owner: str, version: int) -> PinnedVersion:
    match reply:
        case ["OK", at, uid, retained, format_, *listed]:
            return PinnedVersion(id_, Pin(int(at), uid), retained, format_, _segments(listed))
        case ["OTHER", at, _]:
            raise UsageError(
                _WHAT,
                found=f"{owner} pins version {at} already, not {version}",
                advice="Fork to another path or name.",
                where=str(id_),
            )
        case ["EPHEMERAL"]:
            raise UsageError(
                _WHAT,
                found="the checkpoint is ephemeral: its state expires when its run ends",
                advice="Only a checkpoint that stays can be forked or kept.",
                where=str(id_),
            )
        case ["LIMIT", owners]:
            raise LimitError(
                _WHAT,
                found=f"{owners} forks and kept versions hold the same segment, which is the limit",
                advice="Drop one: `redis-state keep QUERY --list` shows them.",
                where=str(id_),
            )
        case ["STATE_LOST", latest, *_]:
            raise not_there(_WHAT, latest=latest, where=str(id_), version=version)
    raise refusal(_WHAT, reply, where=str(id_), version=version)


def held_commands(ids: Sequence[PartitionId], owner: str) -> list[Command]:
    """Returns the commands that list what an owner pins, in one pipeline."""
    return script("held").many([(keys.meta(id_), (owner,)) for id_ in ids])


def read_held(id_: PartitionId, reply: object) -> Opened | None:
    """Decodes a reply to `held_commands` as if the version had been opened; `None` without a pin.

    Raises:
        StateError: A pinned segment is gone.
        FormatError: The partition is of another format, purged, or damaged.
    """
    match words(_READING, reply, where=str(id_)):
        case ["NONE"]:
            return None
        case ["OK", at, uid, _, _, opened, floor, *listed]:
            pin = Pin(int(at), uid)
            newest, lowest = text_number(opened) or 0, text_number(floor) or 0
            return Opened(id_, pin, False, newest, lowest, Pin(0, "-"), _segments(listed))
        case ["STATE_LOST", *_]:
            raise StateError(
                _READING,
                found="a segment that the pin holds is gone",
                advice="Look for evictions, FLUSHDB or deleted keys; restore the Redis data.",
                kind=Kind.STATE_LOST,
                where=str(id_),
            )
        case other:
            raise refusal(_READING, other, where=str(id_), version=None)


def unpin_all(client: Client, ids: Sequence[PartitionId], owner: str, *, expires: str = "") -> int:
    """Ends the pins of an owner; returns the number of partitions that had one.

    Args:
        expires: Ends only a pin with this expiry; empty means any.

    Raises:
        FormatError: A partition is of another format, or purged.
    """
    what = "ending a pin"
    calls: list[tuple[str, Sequence[str | bytes]]] = [
        (keys.meta(id_), (owner, expires)) for id_ in ids
    ]
    replies = client.call(what, script("unpin").many(calls)) if calls else []
    ended = 0
    for id_, reply in zip(ids, replies, strict=True):
        answer = words(what, reply, where=str(id_))
        if answer[0] not in ("OK", "NONE", "RENEWED"):
            raise refusal(what, answer, where=str(id_), version=None)
        ended += answer[0] == "OK"
    return ended


def pin_again(client: Client, id_: PartitionId, manifest: Mapping[bytes, bytes]) -> bool:
    """Pins the foreign segments of a fork again, whose parent has lost the pin.

    A parent that is restored from a copy has no pins, and its registry does not name its forks.
    Segments of one ident have the same rows, wherever they come from.

    Args:
        id_: A partition of the fork.
        manifest: All fields of its `P:m`.

    Returns:
        True if the pin was made again; false if it is there, or the parent lacks a segment.

    Raises:
        UnavailableError: Redis gave no answer before the deadline.
    """
    began = manifest.get(FORKED_FROM.encode())
    idents = foreign_segments(manifest)
    if began is None or not idents:
        return False
    gen, tenant = id_.store.gen, id_.store.tenant
    there, what = id_.of_gen(parent_in(began)), "pinning the segments of a fork again"
    query = keys.query(there.store.gen, tenant=tenant)
    held, left_ms, (is_registered, named) = client.call(
        what,
        [
            ("HEXISTS", keys.meta(there), f"x:{gen}"),
            ("PTTL", keys.meta(id_)),
            ("HMGET", query, "f", f"{FORKS}{gen}"),
        ],
    )
    if left_ms >= 0:
        # What expires is a fork that is not complete, whose pin has an end of its own.
        return False
    _, version, uid = began.decode("ascii", "replace").split(" ")
    if not held:
        newest_first = sorted(idents, key=lambda ident: -int(ident.split(":")[1]))
        args = [gen, FORK, version, uid, "0", *newest_first]
        if client.script(what, script("pin"), [keys.meta(there)], args)[0] != "OK":
            return False
    # Without a registry the parent would look registered by the name of its fork alone.
    if is_registered is not None and named is None:
        (time,) = client.call(what, [("TIME",)])
        name_fork(client, there.store.gen, gen, int(version), now_ms=time_ms(time), tenant=tenant)
    return not held


def name_fork(
    client: Client, parent: str, gen: str, version: int, *, now_ms: int, tenant: str
) -> bool:
    """Enters a fork in the registry of its parent; returns false if the parent is purged.

    Args:
        parent: Checkpoint id of the parent.
        gen: Checkpoint id of the fork.
        version: Version with which the fork begins.
        now_ms: Time of the server's clock.
    """
    what = "naming a fork in the registry of its parent"
    noted = json.dumps({"version": version, "at": now_ms})
    query = [keys.query(parent, tenant=tenant)]
    return client.script(what, script("stay"), query, ["", f"{FORKS}{gen}", noted]) != ["PURGED"]


def fork_partitions(
    client: Client, gen: str, pinned: Sequence[PinnedVersion], *, ttl_ms: int
) -> None:
    """Creates the partitions of a fork from what its parent pins for it; may be repeated.

    Args:
        gen: Checkpoint id of the fork.
        ttl_ms: Expiry of the partitions, until the fork is complete.

    Raises:
        UsageError: A partition exists with another parent or another first version.
    """
    what = "creating the partitions of a fork"
    ids = [one.id.of_gen(gen) for one in pinned]
    calls: list[tuple[str, Sequence[str | bytes]]] = []
    for id_, one in zip(ids, pinned, strict=True):
        parent = one.id.store.gen
        listed = [
            word
            for each in one.segments
            for word in (each.field, each.entry.text, f"p {each.gen or parent}")
        ]
        head = [parent, str(one.pin.version), one.pin.uid, str(one.floor), one.retained]
        calls.append((keys.meta(id_), [*head, one.checkpoint_format, str(ttl_ms), *listed]))
    replies = client.call(what, script("fork").many(calls)) if calls else []
    for id_, one, reply in zip(ids, pinned, replies, strict=True):
        answer = words(what, reply, where=str(id_))
        if answer != ["OK"] and answer != ["PRESENT", str(one.pin.version), one.pin.uid]:
            raise UsageError(
                what,
                found=f"checkpoint {gen} has this partition already, with other state",
                advice="Fork to another path or name.",
                where=str(id_),
            )


def _segments(listed: Sequence[str]) -> tuple[Segment, ...]:
    return tuple(map(parse_segment, listed[::3], listed[1::3], listed[2::3]))
