"""The versions of a parent's partitions after a batch, and the batches that can be forked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import words
from redis_state.errors import ConfigError, Kind, RedisStateError, StateError, UnavailableError
from redis_state.forks.logs import Attempts
from redis_state.forks.parent import Parent, ParentState
from redis_state.format.header import FIELD
from redis_state.format.signature import is_signed
from redis_state.ids import EMPTY, PartitionId
from redis_state.protocol.opening import Opened, beyond, open_commands, opening, read_replies
from redis_state.protocol.registry import counted_partitions
from redis_state.protocol.segments import SegmentGoneError, fetch, fetch_whole
from redis_state.reader.versions import open_latest
from redis_state.recovery.doctor import diagnose
from redis_state.recovery.rewind import startable_batches

_WHAT = "opening the state to fork"
_NOTHING = ["STATE_LOST", "0", "0"]
_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class VersionsAt:
    """Versions of one checkpoint after a batch.

    Attributes:
        opened: The partitions that have state, each with its newest segment first.
    """

    state: ParentState
    opened: tuple[Opened, ...]

    @property
    def version(self) -> int:
        """The newest version of all partitions; 0 without any."""
        return max((one.pin.version for one in self.opened), default=0)

    @property
    def rows(self) -> int:
        """Number of rows, without those of internal families."""
        heads = [one.segments[0].entry for one in self.opened if one.segments]
        return sum(head.live - head.internal for head in heads)


Held = Mapping[PartitionId, Opened]
"""Versions that an interrupted fork has pinned already."""


def versions_at(
    client: Client,
    parent: Parent,
    batch: int | None,
    attempts: Attempts,
    *,
    held: Held,
    tenant: str,
) -> list[VersionsAt]:
    """Opens the versions of all partitions after a batch; changes nothing.

    Args:
        batch: ``None`` for a Python store without batches, whose newest versions are taken.
        attempts: Spark's unique ids, as the commit log names them.

    Raises:
        StateError: Redis does not hold the batch any more; the message lists those that it holds.
    """
    try:
        return [_versions(client, one, batch, attempts, held, tenant) for one in parent.states]
    except StateError as error:
        if error.kind not in (Kind.STATE_LOST, Kind.VERSION_EXPIRED) or batch is None:
            raise
        raise StateError(
            f"forking batch {batch}",
            kind=error.kind,
            found=f"Redis does not hold all of its state any more ({error.where}: {error.found})",
            advice=f"Nothing was made. {_batches(client, parent, tenant)}",
            where=parent.where,
        ) from error


def forkable_batches(client: Client, parent: Parent, *, tenant: str) -> list[int]:
    """Returns the batches whose state can be forked, oldest first.

    Raises:
        RedisStateError: See `redis_state.recovery.doctor.diagnose`.
    """
    found = diagnose(client, *(state.gen for state in parent.states), tenant=tenant)
    startable = None if parent.folder is None else startable_batches(parent.folder)
    return found.batches(among=startable, since=parent.since)


def unforkable(
    client: Client, parent: Parent, batch: int, found: str, *, tenant: str
) -> StateError:
    """Returns the error for a batch that Spark's logs cannot continue from."""
    return StateError(
        f"forking batch {batch}",
        kind=Kind.VERSION_EXPIRED,
        found=found,
        advice=f"Nothing was made. {_batches(client, parent, tenant)}",
        where=parent.where,
    )


def _batches(client: Client, parent: Parent, tenant: str) -> str:
    try:
        found = forkable_batches(client, parent, tenant=tenant)
    except RedisStateError:
        found = []
    if not found:
        return "No batch can be forked now."
    if found == list(range(found[0], found[-1] + 1)) and len(found) > 2:
        return f"The batches {found[0]} to {found[-1]} can be forked."
    shown = ", ".join(map(str, found[-_SHOWN_MAX:]))
    return f"These batches can be forked: {'…, ' if len(found) > _SHOWN_MAX else ''}{shown}."


def _versions(
    client: Client,
    state: ParentState,
    batch: int | None,
    attempts: Attempts,
    held: Held,
    tenant: str,
) -> VersionsAt:
    found: list[Opened] = []
    for one in state.operators:
        ids = counted_partitions(client, state.gen, [one], tenant=tenant)
        rest = [id_ for id_ in ids if id_ not in held]
        if batch is None:
            found += open_latest(client, rest, alone=one.alone)
        else:
            of_one = () if state.name else attempts.get(one.operator, ())
            found += _opened(client, ids, rest, state.version(one, batch), of_one)
        found += [held[id_] for id_ in ids if id_ in held]
    return VersionsAt(state, tuple(one for one in found if one.pin != EMPTY))


def _opened(
    client: Client,
    ids: Sequence[PartitionId],
    wanted: Sequence[PartitionId],
    version: int,
    attempts: Sequence[Sequence[str]],
) -> list[Opened]:
    """Opens a version of some partitions of a store, without those that were never written.

    Args:
        ids: All partitions of the store.
    """
    uids = _uids(client, wanted, version, attempts) if attempts else {}
    commands = open_commands(wanted, version, uids=uids)
    replies = client.call(opening(version), commands) if commands else []
    pairs = list(zip(wanted, replies, strict=True))
    missing = {id_ for id_, reply in pairs if words(_WHAT, reply, where=str(id_)) == _NOTHING}
    # A union has more tasks than its operator has partitions, and Redis counts the tasks.
    unwritten = beyond(ids, missing) if len(missing) < len(ids) else set()
    there = [(id_, reply) for id_, reply in pairs if id_ not in unwritten]
    return read_replies([id_ for id_, _ in there], [one for _, one in there], version=version)


def _uids(
    client: Client, ids: Sequence[PartitionId], version: int, attempts: Sequence[Sequence[str]]
) -> Mapping[int, str]:
    """Returns the attempt of each partition, by Spark's commit log.

    The log names one attempt for each store of a partition, in an order that only Spark knows. No
    two stores share an attempt, so the one that exists in the partition is its own.
    """
    named = [(id_, attempts[id_.partition]) for id_ in ids if id_.partition < len(attempts)]
    fields = [[f"{kind}:{version}:{uid}" for uid in uids for kind in "ds"] for _, uids in named]
    read = [("HMGET", keys.meta(id_), *of) for (id_, _), of in zip(named, fields, strict=True)]
    replies = client.call(_WHAT, read) if read else []
    found = {}
    for (id_, uids), reply in zip(named, replies, strict=True):
        there = [uid for at, uid in enumerate(uids) if any(reply[2 * at : 2 * at + 2])]
        if len(there) != 1:
            raise StateError(
                opening(version),
                kind=Kind.STATE_LOST,
                found="the partition does not have the attempt that Spark's commit log names",
                advice="Fork another batch, or restore the data of that Redis.",
                where=str(id_),
                version=version,
            )
        found[id_.partition] = there[0]
    return found


def check_secret(client: Client, versions: Sequence[VersionsAt]) -> None:
    """Checks that a block of the parent can be read with the secret of the fork.

    Raises:
        ConfigError: The block is signed with another secret, or only one of both has a secret.
        UnavailableError: Maintenance replaced the segment meanwhile.
    """
    listed = [
        (one, segment)
        for of in versions
        for one in of.opened
        for segment in one.segments
        if segment.entry.blocks
    ]
    if not listed:
        return
    opened, segment = min(
        listed,
        key=lambda pair: (
            pair[1].place is not None,
            not pair[1].entry.header,
            pair[1].entry.bytes,
        ),
    )
    what, found = "reading a block of the state to fork", ""
    reader = client.without_signer() if client.signer is not None else client
    try:
        if segment.entry.header:
            field, (raw,) = FIELD, fetch(reader, opened.id, segment, [FIELD])
        else:
            (blocks,) = fetch_whole(reader, opened.id, [segment])
            field, raw = next(iter(blocks.items()))
    except SegmentGoneError as error:
        raise UnavailableError(
            what, found="maintenance replaced its segment meanwhile", advice="Run it again."
        ) from error
    signed = raw is not None and is_signed(raw)
    if signed and client.signer is None:
        found = "the query signs its blocks"
    elif not signed and client.signer is not None:
        found = "the query does not sign its blocks"
    elif signed:
        try:
            client.opened(opened.key(segment), [field], [raw])
        except RedisStateError:
            found = "the query signs its blocks with another secret"
    if found:
        raise ConfigError(
            what,
            found=found,
            advice="A fork reads its parent's blocks with the same secret: give the key file of "
            "the query with --signing-key-file, or none. Nothing was made.",
            where=str(opened.id),
        )
