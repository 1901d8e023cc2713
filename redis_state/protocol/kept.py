"""Kept versions: names for versions that stay readable (docs/format.md, section 14)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import Command, script
from redis_state.errors import ConfigError, FormatError, Kind, NotFoundError, StateError
from redis_state.ids import EMPTY, PartitionId
from redis_state.protocol.opening import Opened
from redis_state.protocol.pins import KEEP_OWNER, held_commands, read_held
from redis_state.protocol.registry import OperatorInfo
from redis_state.protocol.texts import is_number, parse_object

KEEP_FIELD = "keep:"
NAME_MAX = 50
_NAME = re.compile(r"[0-9A-Za-z_.-]{1,50}")
_NUMBER = re.compile(r"[+-]?[0-9_.]*(?:[eE][+-]?[0-9]+)?")
_RESERVED = (
    "confirmed",
    "latest",
    "uncommitted",
    "opened",
    "newest",
    "earliest",
    "start",
    "inf",
    "nan",
)
_SHOWN_MAX = 20
_READING = "reading a kept version"


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version of a query that stays readable under a name.

    Attributes:
        batch: The batch that made the version; of a store alone, the version minus one.
        version: The newest version of all partitions.
        at_ms: Time when the version was kept; milliseconds since 1970.
        expires_ms: Time when the version expires; milliseconds since 1970, 0 for never.
        pins: Partitions that had a manifest, by operator and store; empty means all of all stores.
        owner: Owner of the pins.
    """

    name: str
    batch: int
    version: int
    at_ms: int
    expires_ms: int
    pins: Mapping[str, Collection[int]]
    owner: str

    @property
    def field(self) -> str:
        """Field of the query's hash."""
        return KEEP_FIELD + self.name

    def is_expired(self, now_ms: int) -> bool:
        """Returns whether the kept version has expired."""
        return 0 < self.expires_ms <= now_ms

    @property
    def json(self) -> str:
        """The value of the field."""
        return json.dumps(
            {
                "batch": self.batch,
                "version": self.version,
                "at": self.at_ms,
                "expires": self.expires_ms,
                "owner": self.owner,
                "pins": {place: _pins_json(pinned) for place, pinned in self.pins.items()},
            },
            separators=(",", ":"),
        )


def _pins_json(pinned: Collection[int]) -> int | list[int]:
    """Returns the count of partitions that are numbered without a gap, else their numbers."""
    return len(pinned) if len(pinned) == max(pinned) + 1 else sorted(pinned)


def _pins(raw: object) -> Collection[int]:
    if is_number(raw):
        return range(int(raw))  # type: ignore[call-overload]  # a number
    if isinstance(raw, list) and raw and all(map(is_number, raw)):
        return frozenset(raw)
    raise ValueError("pins are malformed")


def is_keep_name(text: str) -> bool:
    """Returns whether a text can be the name of a kept version."""
    return (
        _NAME.fullmatch(text) is not None
        and text[0] not in "-+"
        and _NUMBER.fullmatch(text) is None
        and text.lower() not in _RESERVED
    )


def check_keep_name(name: str) -> None:
    """Rejects a name that could be read as a number, an option or another version.

    Raises:
        ConfigError: The name is malformed or reserved.
    """
    if not is_keep_name(name):
        raise ConfigError(
            "keeping a version",
            found=f"'{name[:NAME_MAX]}' cannot be its name",
            advice=f"Give 1 to {NAME_MAX} letters, digits, '_', '.' or '-' that are no number, do "
            f"not begin with '-', and are none of: {', '.join(_RESERVED)}.",
        )


def parse_kept(raw: Mapping[bytes, bytes]) -> list[KeptVersion]:
    """Returns the kept versions in the hash of a query, oldest first, also expired ones.

    Raises:
        FormatError: An entry is damaged.
    """
    prefix = KEEP_FIELD.encode()
    found = [_parsed(name, value) for name, value in raw.items() if name.startswith(prefix)]
    return sorted(found, key=lambda one: (one.at_ms, one.name))


def forget_kept(client: Client, gen: str, kept: KeptVersion, *, tenant: str) -> bool:
    """Removes the name of a version, unless another version has the name meanwhile.

    Returns:
        True if the version has no name any more; false for a purged checkpoint, which keeps it.

    Raises:
        UnavailableError: Redis gave no answer before the deadline.
    """
    query = keys.query(gen, tenant=tenant)
    reply = client.script("removing a name", script("forget"), [query], [kept.field, kept.owner])
    return reply != ["PURGED"]


def forget_expired(client: Client, gen: str, raw: Mapping[bytes, bytes], *, tenant: str) -> None:
    """Removes the names of expired versions; their pins may have ended before.

    Args:
        raw: All registry fields of the query.

    Raises:
        FormatError: An entry is damaged.
        UnavailableError: Redis gave no answer before the deadline.
    """
    every = parse_kept(raw)
    if every:
        (time,) = client.call("removing expired names", [("TIME",)])
        for kept in every:
            if kept.is_expired(time_ms(time)):
                forget_kept(client, gen, kept, tenant=tenant)


def _parsed(field: bytes, raw: bytes) -> KeptVersion:
    name = field.decode("ascii", "replace").removeprefix(KEEP_FIELD)
    try:
        entry = parse_object(raw)
        numbers = [entry.get(key) for key in ("batch", "version", "at", "expires")]
        # The state before batch 0 can be kept, too.
        wrong = not all(is_number(one) or (one == -1 and at == 0) for at, one in enumerate(numbers))
        pins = entry.get("pins", {})
        if wrong or not isinstance(pins, dict):
            raise ValueError("a number is malformed")
        owner = entry.get("owner")
        if not isinstance(owner, str) or not owner.startswith(KEEP_OWNER):
            raise ValueError("the owner is malformed")
        pinned = {str(place): _pins(value) for place, value in pins.items()}
    except ValueError as error:
        raise FormatError(
            _READING,
            found=f"the entry of the kept version '{name}' is damaged",
            advice=f"`redis-state keep QUERY --drop {name}` removes it.",
        ) from error
    batch, version, at_ms, expires_ms = map(int, numbers)  # type: ignore[arg-type]  # all are whole
    return KeptVersion(name, batch, version, at_ms, expires_ms, pinned, owner)


def read_kept(client: Client, gen: str, *, tenant: str) -> tuple[int, list[KeptVersion]]:
    """Reads the kept versions of a checkpoint, oldest first, also expired ones.

    Returns:
        The server's time in milliseconds since 1970, and the versions.

    Raises:
        FormatError: An entry is damaged.
        UnavailableError: Redis gave no answer before the deadline.
    """
    time, raw = client.call(
        "listing kept versions", [("TIME",), ("HGETALL", keys.query(gen, tenant=tenant))]
    )
    return time_ms(time), parse_kept(raw)


def find_kept(client: Client, gen: str, name: str, *, tenant: str) -> KeptVersion:
    """Returns a kept version by its name.

    Raises:
        NotFoundError: There is no such version; the message lists those that exist.
        FormatError: An entry is damaged.
    """
    now_ms, found = read_kept(client, gen, tenant=tenant)
    return _named(found, name, now_ms)


def _named(found: Sequence[KeptVersion], name: str, now_ms: int) -> KeptVersion:
    there = [one for one in found if not one.is_expired(now_ms)]
    for one in there:
        if one.name == name:
            return one
    expired = any(one.name == name for one in found)
    raise no_such_version(name, there, expired=expired)


def no_such_version(
    name: str, there: Sequence[KeptVersion], *, expired: bool = False
) -> NotFoundError:
    """Returns the error for a name that no kept version has.

    Args:
        there: The kept versions that exist.
        expired: The name existed until it expired.
    """
    names = [f"'{one.name}' (batch {one.batch})" for one in there]
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    listed = ", ".join(names[:_SHOWN_MAX]) + more
    return NotFoundError(
        f"reading the kept version '{name}'",
        found="it has expired" if expired else "the query has no kept version of this name",
        advice=f"Kept versions: {listed or 'none'}.",
    )


def open_kept(
    client: Client, info: OperatorInfo, ids: Sequence[PartitionId], name: str
) -> list[Opened]:
    """Opens partitions of a store at a kept version.

    The segments are those that the pins hold, whatever retention has dropped since.

    Args:
        ids: Partitions of one store.

    Raises:
        NotFoundError: There is no such version.
        StateError: The version does not have this store, or its pins or segments are gone.
        FormatError: An entry or a partition is damaged.
    """
    if not ids:
        return []
    of = ids[0].store
    read: list[Command] = [("TIME",), ("HGETALL", keys.query(of.gen, tenant=of.tenant))]
    time, raw = client.call(_READING, read)
    kept = _named(parse_kept(raw), name, time_ms(time))
    place = f"{info.operator}:{info.store}"
    pinned = kept.pins.get(place, ()) if kept.pins else range(info.partitions)
    if not pinned:
        raise StateError(
            f"reading the kept version '{name}'",
            found="it does not have this store, which was created later",
            advice="Read another store or version.",
            kind=Kind.STATE_LOST,
            where=f"operator {info.operator} store {info.store}",
        )
    found: list[Opened] = []
    replies = client.call(_READING, held_commands(ids, kept.owner))
    for id_, reply in zip(ids, replies, strict=True):
        opened = read_held(id_, reply)
        if opened is None and id_.partition in pinned:
            raise _unpinned(id_, name)
        found.append(opened or Opened(id_, EMPTY, False, 0, 0, EMPTY, ()))
    return found


def _unpinned(id_: PartitionId, name: str) -> StateError:
    return StateError(
        f"reading the kept version '{name}'",
        found="a partition does not hold it any more",
        advice="The version was dropped meanwhile, or a fail-over lost it: `redis-state keep QUERY "
        "--list` shows the versions that exist.",
        kind=Kind.STATE_LOST,
        where=str(id_),
    )
