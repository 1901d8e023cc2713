"""Instances that serve partitions, as stored in Redis (docs/format.md, section 9).

An instance is a string with an expiry, in the JVM adapter's spelling, so that each side lists the
other's. An empty string tells the owner to leave, because its run was deactivated.
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
"""Age up to which an instance, driver or partition counts as alive.

Partitions and drivers are noted every minute. An instance expires a minute after its last report,
and a new executor reports within twenty seconds.
"""
KEYS_AT_ONCE = 1024
PLACES_TTL_MS = 24 * 3600 * 1000
"""Time for which the names of reported partitions stay after the last heartbeat of any of them."""
TOTALS_TTL_MS = 3600 * 1000
"""Time for which the counts of a vanished instance stay visible."""
ERRORS = ("fenced", "lost")
"""Counted failures of tasks (docs/format.md, section 9)."""

_WHAT = "looking up instances"
_MEMBERS = ("host", "executor", "run")
_OPEN_TIMES_MAX = 16


@dataclass(frozen=True, slots=True)
class Instance:
    """A loaded store provider.

    Attributes:
        executor_id: Id of the executor or process, unique on all hosts of the run.
        run_id: Id of the query run that the provider serves.
    """

    host: str
    executor_id: str
    run_id: str

    @property
    def location(self) -> str:
        """Preferred location of a task, in Spark's spelling."""
        return f"executor_{self.host}_{self.executor_id}"

    @property
    def members(self) -> dict[str, str | int]:
        """Members of the instance's JSON object."""
        return dict(zip(_MEMBERS, (self.host, self.executor_id, self.run_id), strict=True))

    def encode(self) -> bytes:
        """Encodes the instance as the value of a partition's key."""
        return _json(self.members)


def decode_instance(raw: bytes | None) -> Instance | None:
    """Decodes the value of a partition's key; ``None`` if no instance serves the partition.

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
    """Latest counts of an instance.

    Attributes:
        counts: By the names of docs/format.md, section 9, since the instance was loaded.
        recent: Numbers of the last minutes, by the names of the member `recent`; ``None`` if the
            instance does not report them.
        open_times: Numbers of recent opening calls, by their duration; see there.
    """

    instance: Instance
    counts: Mapping[str, int]
    recent: Mapping[str, int] | None = None
    open_times: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Counts of a checkpoint.

    Attributes:
        totals: By operator, partition and store, without damaged entries.
        errors: Number of failed tasks, by `ERRORS`, operator and store.
    """

    totals: Mapping[tuple[int, int, str], Totals]
    errors: Mapping[tuple[str, int, str], int]


def find_counted(
    client: Client, gens: Sequence[str], *, tenant: str = ""
) -> list[CheckpointCounts]:
    """Reads the counts of checkpoints, one hash for each."""
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
    parsed = (
        (parse_place(place.decode("utf-8", "replace")), _parse_totals(text))
        for place, text in raw.items()
    )
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


def parse_place(text: str) -> tuple[int, int, str] | None:
    """Parses a partition's operator, number and store; ``None`` if the text is malformed."""
    operator, _, rest = text.partition(":")
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
    parsed = parse_object(raw)
    recent, times = parsed.get("recent"), []
    if isinstance(recent, dict):
        times = recent.get("openTimes", [])
        recent = _numbers(recent)
    else:
        recent = None
    known = isinstance(times, list) and len(times) <= _OPEN_TIMES_MAX and all(map(is_number, times))
    return Totals(instance, _numbers(parsed), recent, tuple(times) if known else ())


def _numbers(members: Mapping[str, object]) -> dict[str, int]:
    return {
        name: value
        for name, value in members.items()
        if isinstance(value, int) and is_number(value)
    }


def report_command(id_: PartitionId, instance: Instance, *, ttl_ms: int) -> Command:
    """Returns the command that registers an instance. The newest instance replaces any other."""
    return ("SET", keys.instance(id_), instance.encode(), "PX", str(ttl_ms))


def place_commands(ids: Iterable[PartitionId], *, ttl_ms: int = PLACES_TTL_MS) -> list[Command]:
    """Returns the commands that note reported partitions, also those that no store ever opened."""
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
    """Returns the commands that publish the counts of instances since they were loaded."""
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
    """Returns the commands that renew instances, but never replace a newer one."""
    calls = [
        (keys.instance(id_), (instance.encode(), str(ttl_ms))) for id_, instance in held.items()
    ]
    return script("heartbeat").many(calls)


def leave(client: Client, held: Mapping[PartitionId, Instance], *, told_ms: int = 0) -> int:
    """Removes instances, unless a newer one has replaced them.

    Args:
        told_ms: Time for which the owner is told to leave; 0 if the owner itself calls.

    Returns:
        Number of removed instances.
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
    """Reads the instances that serve partitions of one checkpoint.

    Raises:
        FormatError: A key holds something other than an instance.
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
