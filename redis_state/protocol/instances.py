"""Who serves which partition, as Redis holds it (docs/format.md, section 9).

An instance is one string with an expiry, spelled as the JVM adapter spells it, so that each side
lists the other's. An empty string tells its owner to leave: the run was deactivated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError
from redis_state.ids import PartitionId, text_number
from redis_state.protocol.texts import is_number, parse_json, parse_object

TTL_MS = 60_000
BEATS_A_TTL = 3
LATELY_MS = 3 * 60_000
"""Whoever lives shows it more often: partitions and drivers are noted by the minute, an instance
expires a minute after its last report, and a new executor reports within twenty seconds."""
KEYS_AT_ONCE = 1024
PLACES_TTL_MS = 24 * 3600 * 1000
"""For so long the names of reported partitions stay after the last heartbeat of any of them."""
TOTALS_TTL_MS = 3600 * 1000
"""For so long one can see what an instance counted that is gone."""
ERRORS = ("fenced", "lost")
"""What is counted of tasks that fail; docs/format.md, section 9."""

_WHAT = "looking up instances"
_MEMBERS = ("host", "executor", "run")


@dataclass(frozen=True, slots=True)
class Instance:
    """A loaded store provider.

    Attributes:
        executor_id: Of the executor or process, unique on all hosts of the run.
        run_id: Of the query run that the provider serves.
    """

    host: str
    executor_id: str
    run_id: str

    @property
    def location(self) -> str:
        """As Spark spells the preferred location of a task."""
        return f"executor_{self.host}_{self.executor_id}"

    @property
    def members(self) -> dict[str, str | int]:
        """Its members in JSON."""
        return dict(zip(_MEMBERS, (self.host, self.executor_id, self.run_id), strict=True))

    def encode(self) -> bytes:
        """What the key of the partition holds."""
        return _json(self.members)


def decode_instance(raw: bytes | None) -> Instance | None:
    """What a key holds; ``None`` if nobody serves the partition.

    Raises:
        FormatError: The bytes are not an instance.
    """
    if not raw:
        return None
    try:
        found = parse_json(raw)
    except ValueError as error:
        raise _bad("an instance is not JSON") from error
    values = [found.get(name) for name in _MEMBERS] if isinstance(found, dict) else []
    host, executor_id, run_id = values or (None, None, None)
    if not (isinstance(host, str) and isinstance(executor_id, str) and isinstance(run_id, str)):
        raise _bad("an instance has no host, executor and run")
    return Instance(host, executor_id, run_id)


@dataclass(frozen=True, slots=True)
class Totals:
    """What an instance said last that it has counted.

    Attributes:
        counts: By the names of docs/format.md, section 9, from when it was loaded.
    """

    instance: Instance
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """What was counted of a checkpoint.

    Attributes:
        totals: By operator, partition and store; what is damaged is left out.
        errors: How often tasks failed, by `ERRORS`, operator and store.
    """

    totals: Mapping[tuple[int, int, str], Totals]
    errors: Mapping[tuple[str, int, str], int]


def find_counted(
    client: Client, gens: Sequence[str], *, tenant: str = ""
) -> list[CheckpointCounts]:
    """What was counted of checkpoints; one hash of each is read."""
    commands = [("HGETALL", keys.totals(gen, tenant=tenant)) for gen in gens]
    found = client.call_in_pieces(
        "reading totals", commands, at_once=KEYS_AT_ONCE, of_other_type=OTHER_TYPE
    )
    return [
        CheckpointCounts({}, {})
        if raw is OTHER_TYPE
        else CheckpointCounts(_totals_in(raw), _errors_in(raw))
        for raw in found
    ]


def _totals_in(raw: Mapping[bytes, bytes]) -> dict[tuple[int, int, str], Totals]:
    parsed = ((_parse_place(place), _parse_totals(text)) for place, text in raw.items())
    return {place: one for place, one in parsed if place and one}


def _errors_in(raw: Mapping[bytes, bytes]) -> dict[tuple[str, int, str], int]:
    counts: dict[tuple[str, int, str], int] = {}
    for field, text in raw.items():
        error, _, rest = field.decode("utf-8", "replace").partition(":")
        operator, _, store = rest.partition(":")
        number, count = text_number(operator), text_number(text.decode("utf-8", "replace"))
        if error in ERRORS and store and number is not None and count is not None:
            counts[error, number, store] = count
    return counts


def _parse_place(raw: bytes) -> tuple[int, int, str] | None:
    operator, _, rest = raw.decode("utf-8", "replace").partition(":")
    partition, _, store = rest.partition(":")
    numbers = text_number(operator), text_number(partition)
    if numbers[0] is None or numbers[1] is None or not store:
        return None
    return numbers[0], numbers[1], store


def _parse_totals(raw: bytes) -> Totals | None:
    try:
        instance = decode_instance(raw)
    except FormatError:
        return None
    if instance is None:
        return None
    counts = {name: count for name, count in parse_object(raw).items() if is_number(count)}
    return Totals(instance, counts)


def report_command(id_: PartitionId, instance: Instance, *, ttl_ms: int) -> Command:
    """Enters an instance, whoever was there before: the newest wins."""
    return ("SET", keys.instance(id_), instance.encode(), "PX", str(ttl_ms))


def place_commands(ids: Iterable[PartitionId], *, ttl_ms: int = PLACES_TTL_MS) -> list[Command]:
    """Notes which partitions were reported, also those that no store has ever opened."""
    places: dict[str, list[str]] = {}
    for id_ in ids:
        of = id_.store
        fields = places.setdefault(keys.places(of.gen, tenant=of.tenant), [])
        fields += [_place(id_), "1"]
    return [
        command
        for key, fields in places.items()
        for command in (("HSET", key, *fields), ("PEXPIRE", key, str(ttl_ms)))
    ]


def totals_commands(
    counted: Mapping[PartitionId, tuple[Instance, Mapping[str, int]]],
    *,
    ttl_ms: int = TOTALS_TTL_MS,
) -> list[Command]:
    """Shows what instances have counted since they were loaded."""
    totals: dict[str, list[str | bytes]] = {}
    for id_, (instance, counts) in counted.items():
        of = id_.store
        fields = totals.setdefault(keys.totals(of.gen, tenant=of.tenant), [])
        fields += [_place(id_), _json(instance.members | dict(counts))]
    return [
        command
        for key, fields in totals.items()
        for command in (("HSET", key, *fields), ("PEXPIRE", key, str(ttl_ms)))
    ]


def heartbeat_commands(held: Mapping[PartitionId, Instance], *, ttl_ms: int) -> list[Command]:
    """Renews instances without taking a place from a newer one."""
    calls = [
        (keys.instance(id_), (instance.encode(), str(ttl_ms))) for id_, instance in held.items()
    ]
    return script("heartbeat").many(calls)


def leave(client: Client, held: Mapping[PartitionId, Instance], *, told_ms: int = 0) -> int:
    """Remove instances, unless a newer one is in their place.

    Args:
        told_ms: For how long the owner is told to leave; 0 if the owner itself calls.

    Returns:
        How many were removed.
    """
    calls = [
        (keys.instance(id_), (instance.encode(), str(told_ms))) for id_, instance in held.items()
    ]
    left = 0
    for start in range(0, len(calls), KEYS_AT_ONCE):
        commands = script("release").many(calls[start : start + KEYS_AT_ONCE])
        left += client.call("removing instances", commands).count([b"OK"])
    return left


def find(client: Client, ids: Sequence[PartitionId]) -> dict[PartitionId, Instance]:
    """The instances of partitions of one checkpoint, as far as somebody serves them.

    Raises:
        FormatError: The key holds something other than an instance.
    """
    found: dict[PartitionId, Instance] = {}
    for start in range(0, len(ids), KEYS_AT_ONCE):
        chunk = ids[start : start + KEYS_AT_ONCE]
        (raws,) = client.call(_WHAT, [("MGET", *map(keys.instance, chunk))])
        for id_, raw in zip(chunk, raws, strict=True):
            instance = decode_instance(raw)
            if instance is not None:
                found[id_] = instance
    return found


def _place(id_: PartitionId) -> str:
    return f"{id_.store.operator}:{id_.partition}:{id_.store.store}"


def _json(members: Mapping[str, str | int]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def _bad(found: str) -> FormatError:
    return FormatError("reading an instance", found=found)
