"""The fork of one checkpoint in Redis: registry, pins and partitions (docs/format.md, 14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error, time_ms, words
from redis_state.backend.script import Command, script
from redis_state.errors import StateError, UnavailableError, UsageError
from redis_state.forks.parent import ParentState
from redis_state.forks.versions import VersionsAt
from redis_state.ids import PartitionId
from redis_state.protocol.foreign import FORKED_FROM
from redis_state.protocol.opening import Opened
from redis_state.protocol.pins import (
    FORK,
    FORK_OF,
    PinnedVersion,
    fork_partitions,
    held_commands,
    name_fork,
    pin_all,
    read_held,
    unpin_all,
)
from redis_state.protocol.registry import counted_partitions
from redis_state.protocol.runs import PURGED_FIELD, STAGED_TTL_MS
from redis_state.recovery.bringing_back import describe

_FORKED = "forked"
_LASTING = -1
"""`PTTL` of a key without an expiry."""
_BEGUN_WORDS = 6
_TRIES_MAX = 5
_WHAT = "forking a checkpoint"


@dataclass(slots=True)
class StateFork:
    """Steps of the fork of one checkpoint. Each may be repeated.

    Attributes:
        gen: Id of the fork.
        fields: Registry fields of the fork: its own, and the stores and batches of the parent.
        where: Name of the fork in errors.
    """

    client: Client
    versions: VersionsAt
    gen: str
    fields: Mapping[str, str]
    tenant: str
    where: str
    _pinned: list[PinnedVersion] = field(default_factory=list)

    @property
    def ids(self) -> list[PartitionId]:
        """The parent's partitions."""
        return [one.id for one in self.versions.opened]

    @property
    def is_alone(self) -> bool:
        """True if each partition has versions of its own, and there are no batches."""
        return all(one.alone for one in self.versions.state.operators)

    @property
    def mark(self) -> str:
        """The parent and the version, as the fork's query names them."""
        return f"{self.versions.state.gen} {self.versions.version}"

    def begin(self) -> Mapping[str, str]:
        """Registers the fork, which expires until it is complete.

        Returns:
            The registered fields, which another call of the same command may have chosen.

        Raises:
            UsageError: The checkpoint is a fork of something else.
            StateError: The fork was purged.
        """
        query = keys.query(self.gen, tenant=self.tenant)
        pairs = [word for pair in self.fields.items() for word in pair]
        self.client.script(_WHAT, script("begin"), [query], [str(STAGED_TTL_MS), *pairs])
        (raw,) = self.client.call(_WHAT, [("HGETALL", query)])
        found = {name.decode("utf-8", "replace"): _text(value) for name, value in raw.items()}
        if PURGED_FIELD in found:
            raise purged_error(_WHAT, self.gen, where=self.where)
        known = found.get(FORK_OF, "")
        if known != self.mark and self.is_alone and known.startswith(self.versions.state.gen):
            # Its partitions have versions of their own, and continued after a call that was killed.
            self.client.call(_WHAT, [("HSET", query, FORK_OF, self.mark)])
        elif known != self.mark:
            raise UsageError(
                _WHAT,
                found=f"checkpoint {self.gen} is a fork of other state ({known})",
                advice="Fork to another path or name. Nothing was changed.",
                where=self.where,
            )
        return found

    def pin(self) -> None:
        """Pins the parent's segments for a day, or as long as they are pinned already.

        Raises:
            RedisStateError: See `pin_all`.
        """
        self._pin(0 if self._is_pinned_permanently() else STAGED_TTL_MS)

    def create(self) -> None:
        """Creates the partitions, which expire until the fork is complete.

        Raises:
            UsageError: See `fork_partitions`.
        """
        fork_partitions(self.client, self.gen, self._pinned, ttl_ms=STAGED_TTL_MS)

    def secure(self) -> None:
        """Makes the pins permanent, and checks that a fail-over has not lost one.

        Raises:
            UnavailableError: The server keeps losing pins.
            RedisStateError: See `pin_all`.
        """
        for _ in range(_TRIES_MAX):
            self._pin(0, lasting=True)
            # Where the first pin had ended, the version may have other segments by now.
            self.create()
            if self._is_pinned_permanently():
                return
        raise UnavailableError(
            _WHAT,
            found="the server keeps losing pins",
            advice="Wait until it no longer fails over, then run the same command again.",
            where=self.where,
        )

    def finish(self) -> None:
        """Removes the expiries, lists the fork, and enters it in the registry of its parent.

        Raises:
            UnavailableError: A partition has expired meanwhile.
            StateError: The fork or its parent was purged meanwhile.
        """
        self._persist()
        counts = Counter((id_.store.operator, id_.store.store) for id_ in self.ids)
        for one in self.versions.state.operators:
            counts[one.operator, one.store] = max(counts[one.operator, one.store], one.partitions)
        (time,) = self.client.call(_WHAT, [("TIME",)])
        now_ms = time_ms(time)
        describe(self.client, self.gen, self.fields, counts, created_ms=now_ms, tenant=self.tenant)
        parent = self.versions.state.gen
        version = self.versions.version
        if not name_fork(self.client, parent, self.gen, version, now_ms=now_ms, tenant=self.tenant):
            raise purged_error(_WHAT, parent, where=self.where)

    def _persist(self) -> None:
        ids = [id_.of_gen(self.gen) for id_ in self.ids]
        commands = script("renew").many([(keys.meta(id_), ("0",)) for id_ in ids])
        replies = self.client.call(_WHAT, commands) if ids else []
        for id_, reply in zip(ids, replies, strict=True):
            match words(_WHAT, reply, where=str(id_)):
                case ["OK", _]:
                    pass
                case ["FORMAT", _]:
                    raise purged_error(_WHAT, self.gen, where=self.where)
                case _:
                    raise UnavailableError(
                        _WHAT,
                        found="a partition of the fork has expired or was lost before the last "
                        "step",
                        advice="Run the same command again.",
                        where=str(id_),
                    )

    def _pin(self, ttl_ms: int, *, lasting: bool = False) -> None:
        """Pins each version in one pipeline; partitions of a Python store may have several."""
        by_version: dict[int, list[PartitionId]] = {}
        uids: dict[PartitionId, str] = {}
        for one in self.versions.opened:
            by_version.setdefault(one.pin.version, []).append(one.id)
            uids[one.id] = one.pin.uid
        self._pinned = [
            pinned
            for version, ids in by_version.items()
            for pinned in pin_all(
                self.client,
                ids,
                self.gen,
                version,
                kind=FORK,
                uids=uids,
                ttl_ms=ttl_ms,
                lasting=lasting,
            )
        ]

    def _is_pinned_permanently(self) -> bool:
        """Returns whether every partition of the parent has a pin of the fork without an expiry."""
        commands = held_commands(self.ids, self.gen)
        replies = self.client.call(_WHAT, commands) if commands else []
        for one, reply in zip(self.versions.opened, replies, strict=True):
            try:
                held = read_held(one.id, reply)
            except StateError:
                return False
            if held is None or held.pin != one.pin or words(_WHAT, reply)[3] != "0":
                return False
        return True


def fork_fields(
    state: ParentState, batch: int | None, own: Mapping[str, str], *, query_id: str
) -> dict[str, str]:
    """Returns the registry fields of a fork: its own, and the stores and batches of its parent.

    Args:
        batch: Batch of the query; ``None`` for a Python store without batches.
        own: Fields of the fork itself.
        query_id: Spark's id of the query that writes the fork's Python stores; empty if unknown.
    """
    found = {"f": "1", **own}
    for one in state.operators:
        place = f"{one.operator}:{one.store}"
        found[f"op:{place}"] = _text(state.fields[f"op:{place}"])
        newest = state.counted(one)
        if newest is None or batch is None:
            continue
        number = max(batch, newest.first - 1)
        if number == newest.number:
            begun = _text(state.fields.get(f"begun:{place}", b"")).split(" ")
            if len(begun) == _BEGUN_WORDS:
                # No run has written the fork, so no run is too old for it.
                found[f"begun:{place}"] = " ".join([*begun[:4], "0", "0"])
        else:
            newest = replace(newest, number=number, run_id=_FORKED)
        found[f"batch:{place}"] = str(newest)
        if query_id:
            found[f"query:{place}"] = query_id
    return found


def held_versions(
    client: Client, state: ParentState, owner: str, *, tenant: str
) -> dict[PartitionId, Opened]:
    """Returns the versions that an interrupted fork has pinned."""
    ids = counted_partitions(client, state.gen, state.operators, tenant=tenant)
    replies = client.call(_WHAT, held_commands(ids, owner)) if ids else []
    held = {id_: read_held(id_, reply) for id_, reply in zip(ids, replies, strict=True)}
    return {id_: one for id_, one in held.items() if one is not None}


def is_detached(client: Client, state: ParentState, gen: str, *, tenant: str) -> bool:
    """Returns whether a fork is complete, and no partition of it names its parent."""
    ids = counted_partitions(client, state.gen, state.operators, tenant=tenant)
    metas = [keys.meta(id_.of_gen(gen)) for id_ in ids]
    commands: list[Command] = [("PTTL", keys.query(gen, tenant=tenant))]
    for meta in metas:
        commands += [("EXISTS", meta), ("HEXISTS", meta, FORKED_FROM)]
    left_ms, *found = client.call(_WHAT, commands)
    return left_ms == _LASTING and any(found[::2]) and not any(found[1::2])


def forget_pins(client: Client, state: ParentState, gen: str, *, tenant: str) -> None:
    """Ends the pins of a fork that expired before it was complete.

    Raises:
        UsageError: The fork still has partitions.
    """
    ids = counted_partitions(client, state.gen, state.operators, tenant=tenant)
    commands: Sequence[Command] = [("EXISTS", keys.meta(id_.of_gen(gen))) for id_ in ids]
    if any(client.call(_WHAT, commands) if ids else []):
        raise UsageError(
            _WHAT,
            found=f"checkpoint {gen} has partitions, but Redis has lost what describes it",
            advice="Fork to another path or name. Nothing was changed.",
        )
    unpin_all(client, ids, gen)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
